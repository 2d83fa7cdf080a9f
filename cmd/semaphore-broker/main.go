// Command semaphore-broker runs the broker of a cluster; see package broker.
package main

import (
	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/broker"
	"github.com/kube-semaphore/semaphore/broker/operator"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/program"
)

// threads is the minimum of GOMAXPROCS. With one thread per core, work for one remote waits in Go's run queues behind
// the work for another, and while the kernel gives a core to another process, everything queued for that core waits
// too. With more threads the kernel shares the cores, and it prefers a thread that has run little. Next to the worst
// remote, on two cores with a load of 20 to 40, the p99 of another remote's acknowledgements is 90 to 145 ms with 8,
// and 220 to 890 ms with 2.
const threads = 8

func main() {
	cmd := program.Command(program.Part[config.Broker]{
		Name:  "semaphore-broker",
		Short: "Takes what other clusters export, and makes it usable in this one",
		Load:  config.Load[config.Broker],
		Run:   broker.Run,

		Threads: threads,
	})
	cmd.AddCommand(cleanup())
	program.Main(cmd)
}

func cleanup() *cobra.Command {
	var o operator.Options
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove from the cluster all that the broker wrote (stop broker and agents first)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load[config.Broker](cmd.Flag("config").Value.String())
			if err != nil {
				return err
			}
			return operator.Run(cmd.Context(), cfg, o, cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "only report what would be removed")
	cmd.Flags().BoolVar(&o.LeaveAnnotations, "leave-annotations", false,
		"leave the annotations of nodes for tunnels to semaphore-wireguard, which uses the same")
	return cmd
}
