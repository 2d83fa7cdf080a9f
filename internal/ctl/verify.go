package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/program"
)

func verifyCommand(access *fleet.Access) *cobra.Command {
	v := verifier{access: access}
	var output *outputs
	var clean bool
	cmd := &cobra.Command{
		Use:   "verify --context C1 --context C2…",
		Short: "send real traffic between pods of linked clusters: by IP, by Service, by policy, through the tunnel",
		Long: `Makes a namespace with three small pods, on different nodes, in each cluster, sends traffic between them from
each cluster to each other, says what passed, and removes all of it, also when it is interrupted or fails. Of what is
installed it checks:

  pod-ip       a pod of one cluster reaches a pod of the other by its IP, which sees the IP of the pod that asks
  encryption   the bytes went through the WireGuard devices of both nodes, and the route leads into the device
  path-mtu     1 MiB passes in each direction, not only small packets
  mirror       a Service that one cluster offers is reached in the other as its mirror
  dns          and by a name like server.NAMESPACE.svc.cluster.c2, where CoreDNS has the block
  global       and as a global service
  policy       a Calico policy that admits a set of pods admits the pod in the set, and no other
  cleanup      nothing of it is left, in any of the clusters

What is not installed, or cannot be looked at, is printed as unchecked, with the reason.

  semaphorectl verify --context c1 --context c2

The pods run the image of the cluster's broker, so nodes need to pull nothing else. docs/install.md has the rights that
this takes.

Exit code 0 when all that was checked passed, 1 when the traffic cannot be made, 2 when a check failed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := output.check(); err != nil {
				return err
			}
			v.progress = &progress{w: cmd.ErrOrStderr(), began: time.Now()}
			if clean {
				return v.clean(cmd.Context(), cmd.OutOrStdout())
			}
			if len(access.Contexts) < 2 {
				return errors.New("--context: give two or more clusters")
			}
			report, err := v.run(cmd.Context())
			if err != nil {
				return err
			}
			if err := report.Print(cmd.OutOrStdout(), output.chosen); err != nil {
				return err
			}
			if !report.Well() {
				return program.ExitError{Code: cli.ExitWrong, Err: errors.New(report.Verdict)}
			}
			return nil
		},
	}
	output = outputFlag(cmd, "table", "json", "yaml")
	f := cmd.Flags()
	f.StringVar(&v.image, "image", "",
		"`image` of the pods, which has semaphorectl in its PATH (default: that of the cluster's broker)")
	f.DurationVar(&v.timeout, "timeout", 30*time.Second, "how long to wait for the pods, and for each check to pass")
	f.BoolVar(&clean, "clean", false, "only remove what a verify that was killed has left")
	return cmd
}

// progress prints the current step to standard error.
type progress struct {
	mu    sync.Mutex
	w     io.Writer
	began time.Time
}

func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "%5.1fs  %s\n", time.Since(p.began).Seconds(), cli.Printable(fmt.Sprintf(format, args...)))
}

// removeWithin bounds the removal, however the checks ended.
const removeWithin = 90 * time.Second

// removalContext returns a context for the removal, which continues after the command was interrupted.
func removalContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), removeWithin)
}
