package status

import (
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// GetCommand lists the parts' objects, one kind at a time: for a person who knows the kind, and for programs.
func GetCommand(access *fleet.Access) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get",
		Short: "list one kind of what the parts have: services, sets, nodes, drains, findings, or who has an IP",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(servicesCommand(access), setsCommand(access), nodesCommand(access), drainsCommand(access),
		findingsCommand(access), ipCommand(access))
	return cmd
}

// ofStatus completes a verb that prints a part of the status of the leading broker, which alone does something.
func ofStatus(access *fleet.Access, cmd *cobra.Command, does string,
	print func(w io.Writer, s *semaphorev1.GetStatusResponse, output string) error) *cobra.Command {
	t := fleet.Target{Access: access, Parts: []string{fleet.Broker}}
	t.Flags(cmd)
	output := show.OutputFlag(cmd, "table", "json", "yaml")
	var timeout time.Duration
	show.TimeoutFlag(cmd, &timeout, 5*time.Second)
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := t.Broker(cmd.Context(), timeout, does)
		if err != nil {
			return err
		}
		return print(cmd.OutOrStdout(), s, output.Chosen)
	}
	return cmd
}
