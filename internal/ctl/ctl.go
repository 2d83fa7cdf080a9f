// Package ctl is semaphorectl: it asks the parts over DebugService and shows what they
// answer, and prints what an operator applies.
//
// It writes to no cluster. What goes to standard output can be piped into kubectl or a
// program; what is for the person alone goes to standard error.
//
// Exit codes: 0 all is well; 1 wrong use, or a part cannot be asked; 2 the part answers and
// something is wrong.
package ctl

import (
	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/internal/program"
)

// exitWrong is the exit code of a check that found something wrong.
const exitWrong = 2

// Command is semaphorectl.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "semaphorectl",
		Short:         "ask the parts of semaphore what they know and do; make keys and DNS blocks",
		Version:       program.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.AddCommand(statusCommand(), debugCommand(), corednsCommand(), pkiCommand())
	return cmd
}
