package ctl

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
)

// stdioCommand is the verb that semaphorectl elsewhere runs in a part's container through pods/exec.
func stdioCommand(access *fleet.Access) *cobra.Command {
	t := fleet.Target{Access: access}
	cmd := &cobra.Command{
		Use: "stdio",
		Short: "copy bytes between the standard streams and the socket of the part in this container, for semaphorectl " +
			"elsewhere",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			if clean, ok := out.(interface{ Raw() *os.File }); ok { // it is no text
				out = clean.Raw()
			}
			return t.Stdio(cmd.Context(), cmd.InOrStdin(), out)
		},
	}
	cmd.Flags().BoolVar(&t.ReadOnly, fleet.ReadOnlyFlag, false, "the socket that takes no orders")
	cmd.Flags().StringArrayVar(&t.Sockets, "socket", nil, "unix `socket` of a part")
	return cmd
}
