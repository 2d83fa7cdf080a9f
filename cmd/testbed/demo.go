package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kube-semaphore/semaphore/test/e2e"
	"github.com/kube-semaphore/semaphore/test/testbed"
)

func demoCommand() *cobra.Command {
	var repo string
	var stay bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "bring up two connected clusters and show, step by step, that they talk",
		Long: `Brings up clusters c1 and c2, installs semaphore in both the documented way, and shows
that a pod of c1 reaches a service of c2 by name, encrypted and admitted by policy.

At a terminal it stays up, with semaphore installed, until Ctrl-C; then, as it does elsewhere at once, it removes
semaphore the documented way, tears the clusters down, and exits 0 only if every line held.`,
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
			return d.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&repo, "repo", ".", "the checkout whose bin/ and deploy/ are used")
	cmd.Flags().BoolVar(&stay, "stay", false, "stay up before the removal, until Ctrl-C (default: at a terminal)")
	return cmd
}

type demo struct {
	out     io.Writer
	repo    string
	stay    bool
	started time.Time
	rows    []row
}

type row struct {
	name, evidence string
	took           time.Duration
	err            error
}

func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.out, "%6.1fs  %s\n", time.Since(d.started).Seconds(), fmt.Sprintf(format, args...))
}

func (d *demo) run(ctx context.Context) (err error) {
	// Ctrl-C cancels the current step. While the demo only waits for the user to look around, it starts the last step
	// instead, which needs the clusters.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var looking atomic.Bool
	stop := context.AfterFunc(ctx, func() {
		if !looking.Load() {
			end()
		}
	})
	defer stop()

	d.say("two clusters: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, CoreDNS; two nodes each with " +
		"containerd, kubelet, kube-proxy and Calico (Felix, BIRD)")
	programs, err := currentPrograms(life, d.repo, d.out)
	if err != nil {
		return err
	}
	tb, err := testbed.Up(life, testbed.Options{Progress: d.out, Programs: programs, Repository: d.repo})
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
	if err := scenario.Prepare(life); err != nil {
		return err
	}
	steps := e2e.Steps()
	last := len(steps) - 1
	for i, step := range steps {
		if i == last {
			d.state(life, scenario)
			if d.stay {
				looking.Store(true)
				d.table()
				d.hints()
				<-ctx.Done()
			}
		}
		d.step(life, scenario, i+1, step)
		if life.Err() != nil {
			return life.Err()
		}
	}
	d.table()
	failed := 0
	for _, r := range d.rows {
		if r.err != nil {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d lines did not hold", failed, len(d.rows))
	}
	if !d.stay {
		d.say("to look around with kubectl, keep the clusters up: bin/testbed demo --stay")
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

// state prints semaphorectl's status and the memory of the processes before the removal.
func (d *demo) state(ctx context.Context, s *e2e.Scenario) {
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

func (d *demo) table() {
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

func (d *demo) hints() {
	fmt.Fprint(d.out, `The clusters stay up until Ctrl-C, which shows the last line: the removal. From another terminal

  bin/testbed shell

is a shell in which plain kubectl reaches both clusters. There, try:

  kubectl --context c1 get nodes,pods -A -o wide
  kubectl --context c1 -n semaphore get services,endpointslices       # the mirrors of c2's Services
  kubectl --context c1 -n semaphore exec deploy/semaphore-broker -- semaphorectl status
  kubectl --context c1 -n semaphore exec deploy/semaphore-broker -- semaphorectl trace --watch --history
  kubectl --context c1 -n shop exec deploy/client -- curl -s http://echo.shop.svc.clusterset.local:8080
  kubectl --context c1 -n shop exec stranger -- curl -sm 3 http://echo.shop.svc.clusterset.local:8080 # dropped
  kubectl --context c1 -n shop scale deployment/web --replicas=0      # c2 answers under the same name:
  kubectl --context c1 -n shop exec deploy/client -- curl -s http://web.shop.svc.cluster.local
  kubectl --context c2 get networkpolicies.crd.projectcalico.org -A
  kubectl --context c2 -n shop scale deployment/echo --replicas=4

and on a node of c1:

  bin/testbed exec c1 n1 -- wg show
  bin/testbed exec c1 n1 -- ip route show table 7394

`)
}
