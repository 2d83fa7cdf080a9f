package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kube-semaphore/semaphore/e2e"
	"github.com/kube-semaphore/semaphore/testbed"
)

func demoCommand() *cobra.Command {
	var repo string
	var stay, remove bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "bring up two connected clusters and show, step by step, that they talk",
		Long: `Brings up clusters c1 and c2, installs semaphore in both the documented way, and shows
that a pod of c1 reaches a service of c2 by name, encrypted and admitted by policy.

At a terminal it stays up afterwards, until Ctrl-C, with semaphore still installed; elsewhere it goes on to
the removal, tears down, and exits 0 only if every line held.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			repo, err := filepath.Abs(repo)
			if err != nil {
				return err
			}
			d := &demo{out: cmd.OutOrStdout(), repo: repo, stay: stay, started: time.Now()}
			if !cmd.Flags().Changed("stay") {
				d.stay = term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd()))
			}
			d.keep = d.stay && !remove
			return d.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&repo, "repo", ".", "the checkout whose bin/ and deploy/ are used")
	cmd.Flags().BoolVar(&stay, "stay", false, "stay up after the steps (default: at a terminal)")
	cmd.Flags().BoolVar(&remove, "remove", false, "also show the removal when it stays up")
	return cmd
}

// demo is one showing.
type demo struct {
	out     io.Writer
	repo    string
	stay    bool
	keep    bool // leave semaphore installed, for the person to look around
	started time.Time
	rows    []row
}

// row is a line of the table.
type row struct {
	name, evidence string
	took           time.Duration
	err            error
}

func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.out, "%6.1fs  %s\n", time.Since(d.started).Seconds(), fmt.Sprintf(format, args...))
}

func (d *demo) run(ctx context.Context) (err error) {
	d.say("two clusters: etcd, kube-apiserver, kube-controller-manager, CoreDNS; two nodes each with kube-proxy and Felix")
	tb, err := testbed.Up(ctx, testbed.Options{Progress: d.out})
	if err != nil {
		return err
	}
	defer func() {
		d.say("taking everything down")
		err = errors.Join(err, tb.Down())
	}()
	d.say("clusters c1 and c2 are up (testbed %s)", tb.ID)
	scenario, err := e2e.New(tb, d.repo, func(what string) { d.say("%s", what) })
	if err != nil {
		return err
	}
	if err := scenario.Prepare(ctx); err != nil {
		return err
	}
	steps := e2e.Steps()
	last := len(steps) - 1
	for i, step := range steps {
		if i == last {
			d.table(ctx, scenario)
			if d.keep {
				break
			}
		}
		d.step(ctx, scenario, i+1, step)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	d.print()
	failed := 0
	for _, r := range d.rows {
		if r.err != nil {
			failed++
		}
	}
	if d.stay {
		d.hints(tb)
		<-ctx.Done()
		return nil
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d lines did not hold", failed, len(d.rows))
	}
	return nil
}

func (d *demo) step(ctx context.Context, s *e2e.Scenario, number int, step e2e.Step) {
	d.say("%d. %s", number, step.Name)
	evidence, took, err := s.Run(ctx, step)
	if err != nil {
		d.say("   FAILED: %v", err)
	} else {
		d.say("   %s", evidence)
	}
	d.rows = append(d.rows, row{step.Name, evidence, took, err})
}

// table shows what semaphorectl and the processes' memory say before all is removed.
func (d *demo) table(ctx context.Context, s *e2e.Scenario) {
	status, err := s.Status(ctx)
	if err != nil {
		d.say("semaphorectl status: %v", err)
		return
	}
	fmt.Fprintf(d.out, "\n%s\n", status)
	memory, err := s.Memory(ctx)
	if err != nil {
		d.say("resident memory: %v", err)
		return
	}
	fmt.Fprintf(d.out, "resident memory\n%s\n", memory)
}

func (d *demo) print() {
	fmt.Fprintln(d.out)
	w := tabwriter.NewWriter(d.out, 0, 0, 2, ' ', 0)
	for i, r := range d.rows {
		verdict, text := "ok", r.evidence
		if r.err != nil {
			first, _, _ := strings.Cut(r.err.Error(), "\n")
			verdict, text = "FAILED", first
		}
		fmt.Fprintf(w, "%d\t%s\t%s\n\t\t  %s (%.1f s)\n", i+1, verdict, r.name, text, r.took.Seconds())
	}
	w.Flush()
	fmt.Fprintln(d.out)
}

func (d *demo) hints(tb *testbed.Testbed) {
	fmt.Fprintf(d.out, `The clusters stay up until Ctrl-C. From another terminal, try:

  bin/testbed kubectl c1 -n semaphore get pods,services
  bin/testbed exec c1 shop/stranger -- curl -s --max-time 3 http://echo.shop.svc.cluster.c2:8080   # dropped by policy
  bin/testbed exec c1 n1 -- wg show
  bin/testbed exec c1 n1 -- ip route
  bin/testbed kubectl c2 get networkpolicies.crd.projectcalico.org -A
  bin/testbed kubectl c2 -n shop scale deployment/echo --replicas=4
  bin/testbed ctl c1 broker status
  bin/testbed ctl c1 broker debug watch --recent

`)
}
