package ctl

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// TestReference: docs/cli.md has the help of each verb.
func TestReference(t *testing.T) {
	var out strings.Builder
	out.WriteString(`# semaphorectl

<!-- Made from the program: go test ./ctl -run TestReference -update -->

Put it into ` + "`PATH`" + ` under the name ` + "`kubectl-semaphore`" + ` too, and ` +
		"`kubectl semaphore`" + ` does the same.
A second link to it, ` + "`kubectl_complete-semaphore`" + `, completes names of clusters and objects there; for the
program itself see ` + "`semaphorectl completion --help`" + `.
Completion asks the clusters of ` + "`--context`" + `, or the current one, with your rights, for 2 s at most.
It leaves out those that do not answer, and names with characters that a shell could take for more than a name.
A broker names 500 objects at most: type more of the name to see the others.

Exit codes are the same for all verbs:

| Code | Means |
| --- | --- |
| 0 | all is well |
| 1 | the verb was used wrongly, or could not do what it is for, such as reach a part |
| 2 | it did, and something is wrong |
| 3 | ` + "`check`" + ` found nothing wrong, and did not look at everything |

A verb that prints what it would do, and waits for ` + "`--yes`" + `, ends with 0.

These flags mean the same for all verbs that have them. ` + "`semaphorectl options`" + ` has those of the connection.

| Flag | Means |
| --- | --- |
| ` + "`--cluster`" + ` | the name of a cluster, by which others know it |
| ` + "`-f`, `--filename`" + ` | a file that is read, ` + "`-`" + ` for standard input |
| ` + "`-o`, `--output`" + ` | the format of the output |
| ` + "`--timeout`" + ` | how long to wait before giving up |
| ` + "`--dry-run`" + ` | change nothing, and print what would be done; ` + "`client`" + ` or ` + "`none`" + ` |
| ` + "`--yes`" + ` | do what was printed |

Where a verb is about several clusters and one apiserver does not answer, it says what the others know, which cluster
did not answer, and after how long: after 15 s at most, ` + "`status` and `explain`" + ` after 10 s.
` + "`trace --watch` and `status --watch`" + ` print what the others say meanwhile.
` + "`install`, `link` and `check --traffic`" + ` change nothing then.

Output is coloured on a terminal only, and not if ` + "`NO_COLOR`" + ` is set.
`)
	for _, cmd := range all(Command()) {
		cmd.InitDefaultHelpFlag()
		if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" || cmd.HasParent() &&
			cmd.Parent().Name() == "completion" {
			continue
		}
		text := cmd.Long
		if text == "" {
			text = strings.ToUpper(cmd.Short[:1]) + cmd.Short[1:] + "."
		}
		fmt.Fprintf(&out, "\n## %s\n\n", cmd.CommandPath())
		fmt.Fprintf(&out, "```text\n%s\n", strings.TrimSpace(text))
		if cmd.Runnable() {
			fmt.Fprintf(&out, "\nUsage:\n  %s\n", cmd.UseLine())
		}
		verbsAndFlags(&out, cmd)
		fmt.Fprintln(&out, "```")
	}
	ctltest.Compare(t, "../docs/cli.md", out.String())
}

// verbsAndFlags writes the subcommands of a command, or its own flags.
func verbsAndFlags(out *strings.Builder, cmd *cobra.Command) {
	if cmd.HasAvailableSubCommands() {
		writeVerbs(out, cmd)
	}
	if flags := ownFlags(cmd).FlagUsages(); flags != "" {
		fmt.Fprintf(out, "\nFlags:\n%s", flags)
	}
	if cmd.Name() == "options" {
		fmt.Fprintf(out, "\n%s", options(cmd.Root(), &fleet.Access{}))
	}
}
