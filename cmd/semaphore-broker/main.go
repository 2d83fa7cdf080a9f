// Command semaphore-broker runs the broker of a cluster; see package broker.
package main

import (
	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/broker"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/program"
)

func main() {
	cmd := program.Command(program.Part[config.Broker]{
		Name:  "semaphore-broker",
		Short: "Takes what other clusters export, and makes it usable in this one",
		Load:  config.Load[config.Broker],
		Run:   broker.Run,
	})
	cmd.AddCommand(cleanup())
	program.Main(cmd)
}

func cleanup() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove from the cluster all that the broker wrote (stop broker and agents first)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load[config.Broker](cmd.Flag("config").Value.String())
			if err != nil {
				return err
			}
			return broker.Cleanup(cmd.Context(), cfg, dryRun, cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only tell what would be removed")
	return cmd
}
