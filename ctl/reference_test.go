package ctl

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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

Each verb has ` + "`--help`" + `; ` + "`semaphorectl options`" + ` has the flags of the connection.
A verb that prints what it would do, and waits for ` + "`--yes`" + `, ends with 0.

| Flag | Means | Default |
| --- | --- | --- |
{flags}
Where a verb is about several clusters and one apiserver does not answer, it says what the others know, which cluster
did not answer, and after how long: after 15 s at most, ` + "`status` and `explain`" + ` after 10 s.
` + "`trace --watch` and `status --watch`" + ` print what the others say meanwhile.
` + "`install`, `link` and `check --traffic`" + ` change nothing then.

Output is coloured on a terminal only, and not if ` + "`NO_COLOR`" + ` is set.
`)
	for _, cmd := range all(Command()) {
		if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" || cmd.HasParent() &&
			(cmd.Parent().Name() == "completion" || inOne(cmd.Parent())) {
			continue
		}
		if cmd.Long == "" && cmd.HasParent() && !cmd.HasAvailableSubCommands() && usages(cmd) == "" &&
			cmd.Name() != "options" {
			continue // its line in the list of verbs says all
		}
		text := strings.TrimSpace(cmd.Long)
		if text == "" {
			text = strings.ToUpper(cmd.Short[:1]) + cmd.Short[1:] + "."
		}
		fmt.Fprintf(&out, "\n## %s\n```text\n", cmd.CommandPath())
		if inOne(cmd) {
			for _, sub := range cmd.Commands() {
				fmt.Fprintf(&out, "%-65s %s\n", sub.UseLine(), sub.Short)
			}
		} else if cmd.Runnable() && !cmd.HasSubCommands() {
			fmt.Fprintln(&out, cmd.UseLine())
		}
		fmt.Fprintln(&out, text)
		// Flags are indented: only after other indented lines they need a line between.
		if last := text[strings.LastIndexByte(text, '\n')+1:]; strings.HasPrefix(last, " ") {
			fmt.Fprintln(&out)
		}
		verbsAndFlags(&out, cmd)
		fmt.Fprintln(&out, "```")
	}
	page := strings.Replace(out.String(), "{flags}", sharedFlags(), 1)
	ctltest.Compare(t, "../docs/cli.md", page)
}

// shared are flags with one meaning, by their help, which the page says once, with the verbs that have them.
var shared = map[string]string{
	"timeout": "how long to wait before giving up", "output": "table, json or yaml",
	"dry-run": "client changes nothing, and prints what would be done",
}

// sharedFlags are the rows of shared flags: the verbs with each default.
func sharedFlags() string {
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(shared)) {
		var defaults []string
		flag := "`--" + name + "`"
		verbs := map[string][]string{}
		for _, cmd := range all(Command()) {
			f := cmd.Flags().Lookup(name)
			if f == nil || f.Usage != shared[name] || cmd.Hidden {
				continue
			}
			if f.Shorthand != "" {
				flag = "`-" + f.Shorthand + "`, `--" + name + "`"
			}
			if verbs[f.DefValue] == nil {
				defaults = append(defaults, f.DefValue)
			}
			verbs[f.DefValue] = append(verbs[f.DefValue], "`"+strings.TrimPrefix(cmd.CommandPath(), "semaphorectl ")+"`")
		}
		for i, one := range defaults {
			defaults[i] = "`" + one + "`: " + strings.Join(verbs[one], ", ")
		}
		fmt.Fprintf(&out, "| %s | %s | %s |\n", flag, shared[name], strings.Join(defaults, "; "))
	}
	return out.String()
}

// inOne reports whether a verb and its subcommands are one section: no subcommand has more to say than its line.
func inOne(cmd *cobra.Command) bool {
	return cmd.HasAvailableSubCommands() && cmd.HasParent() &&
		!slices.ContainsFunc(cmd.Commands(), func(sub *cobra.Command) bool { return sub.Long != "" })
}

// verbsAndFlags writes the subcommands of a command, and its own flags.
func verbsAndFlags(out *strings.Builder, cmd *cobra.Command) {
	if cmd.HasAvailableSubCommands() && !inOne(cmd) {
		writeVerbs(out, cmd)
	}
	out.WriteString(usages(cmd))
	if cmd.Name() == "options" {
		fmt.Fprintf(out, "\n%s", options(cmd.Root(), &fleet.Access{}))
	}
}

// usages are the flags of a section, but for shared ones. Each is there once, with the subcommand that it is of if the
// section has several and not all have it.
func usages(cmd *cobra.Command) string {
	flags := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
	of := []*cobra.Command{cmd}
	if inOne(cmd) {
		of = cmd.Commands()
	}
	for _, one := range of {
		ownFlags(one).VisitAll(func(f *pflag.Flag) {
			if f.Usage == shared[f.Name] {
				return
			}
			said := *f
			if slices.ContainsFunc(of, func(other *cobra.Command) bool { return other.Flags().Lookup(f.Name) == nil }) {
				said.Usage = one.Name() + ": " + f.Usage
			}
			if flags.Lookup(f.Name) == nil {
				flags.AddFlag(&said)
			}
		})
	}
	return flags.FlagUsages()
}
