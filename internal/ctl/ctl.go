// Package ctl is semaphorectl: it asks the parts over DebugService and shows what they
// answer, and prints what an operator applies.
//
// Command puts the verbs together; each has a file of its own, or several of one beginning. How parts are reached is package fleet's,
// how is printed cli's, and what is wrong with what was collected is said by internal/diagnose. It imports no part.
//
// It writes to no cluster. What goes to standard output can be piped into kubectl or a
// program; what is for the person alone goes to standard error.
//
// Exit codes: 0 all is well; 1 wrong use, or a part cannot be asked; 2 the part answers and
// something is wrong. check: 0 all is well; 1 warnings; 2 errors, or wrong use.
package ctl

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/internal/program"
)

// Command is semaphorectl.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "semaphorectl",
		Short: "ask the parts of semaphore what they know and do; make keys and DNS blocks",
		Long: `Asks the parts of semaphore what they know and do; makes keys and DNS blocks.

Exit code 0 when all is well, 1 for wrong use and for a part that cannot be asked, 2 when a part answers
and something is wrong. For check: 1 for warnings, 2 for errors and wrong use.`,
		Version:       program.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.AddCommand(statusCommand(), debugCommand(), brakeCommand(), drainCommand(), undrainCommand(), rotateKeyCommand(), corednsCommand(), policyCommand(), explainCommand(), pkiCommand(), checkCommand(), versionCommand())
	return cmd
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print the version of this program",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), program.Version)
			return err
		},
	}
}
