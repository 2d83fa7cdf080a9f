// Package get lists what the parts have, one kind at a time: for a person who knows what to look for, and for programs.
package get

import (
	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
)

func Command(access *fleet.Access) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get",
		Short: "list one kind of what the parts have: services, sets, nodes, drains, findings, or who has an IP",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(servicesCommand(access), setsCommand(access), nodesCommand(access), drainsCommand(access),
		findingsCommand(access), ipCommand(access))
	return cmd
}
