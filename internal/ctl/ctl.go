// Package ctl is semaphorectl: it asks the parts over DebugService and shows what they
// answer, and prints what an operator applies.
//
// It writes to no cluster. What goes to standard output can be piped into kubectl or a
// program; what is for the person alone goes to standard error.
//
// Exit codes: 0 all is well; 1 wrong use, or a part cannot be asked; 2 the part answers and
// something is wrong. check: 0 all is well; 1 warnings; 2 errors, or wrong use.
package ctl

import (
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/internal/program"
)

// exitWrong is the exit code of a check that found something wrong.
const exitWrong = 2

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

// printLines prints a text of several lines, each printable.
func printLines(w io.Writer, text string) error {
	for line := range strings.Lines(text) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(printable(line), " ")); err != nil {
			return err
		}
	}
	return nil
}

// printable keeps what another cluster made up from commanding the terminal: control characters, and
// those that turn the direction of text, become spaces.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
}
