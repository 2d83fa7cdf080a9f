package ctl

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// all returns a command and its subcommands.
func all(cmd *cobra.Command) []*cobra.Command {
	out := []*cobra.Command{cmd}
	for _, sub := range cmd.Commands() {
		out = append(out, all(sub)...)
	}
	return out
}

// TestValuesHaveNames: pflag uses a text in backquotes as the name of a flag's value, so a help text must not quote a
// command that way.
func TestValuesHaveNames(t *testing.T) {
	for _, cmd := range all(Command()) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if name, usage := pflag.UnquoteUsage(f); strings.ContainsAny(name, " \t") || strings.Contains(usage, "`") {
				t.Errorf("%s --%s: the value is called %q: %s", cmd.CommandPath(), f.Name, name, usage)
			}
		})
	}
}

// TestPlugin: under kubectl's name for a plugin, help shows the command that people type, and a command for a pod keeps
// its name.
func TestPlugin(t *testing.T) {
	for file, want := range map[string]string{
		"/usr/local/bin/kubectl-semaphore": "kubectl semaphore", "kubectl-semaphore.exe": "kubectl semaphore",
		"semaphorectl": "semaphorectl",
	} {
		for _, args := range [][]string{{"--help"}, {"status", "--help"}, {"explain", "--help"}, {"check", "--help"}} {
			cmd := CommandAs(file, nil)
			var out bytes.Buffer
			cmd.SetOut(&out)
			cmd.SetArgs(args)
			must(t, cmd.ExecuteContext(t.Context()))
			if !strings.Contains(out.String(), "\nUsage:\n  "+want+" ") {
				t.Errorf("%s %v: no usage of %q in\n%s", file, args, want, out.String())
			}
			for line := range strings.Lines(out.String()) {
				if want != "semaphorectl" && strings.Contains(line, "semaphorectl ") && !strings.Contains(line, "exec ") {
					t.Errorf("%s %v says %q", file, args, line)
				}
			}
		}
	}
}

// TestFlagsOfClusters: a flag that names a cluster is an error for a verb that reaches none.
func TestFlagsOfClusters(t *testing.T) {
	for _, args := range []string{"version --context c1", "--kubeconfig f pki show --dir d",
		"pki secrets --dir d --context c1"} {
		if _, code, err := run(t, strings.Fields(args)...); code != 1 || err == nil ||
			!strings.Contains(err.Error(), "reaches no cluster") {
			t.Errorf("%s: exit code %d, %v", args, code, err)
		}
	}
	for args, want := range map[string]string{
		"status --context c1 --kubeconfig /nowhere":                        "stat /nowhere",
		"status --context c1 --context c1 --kubeconfig /nowhere":           "given twice",
		"status --context c1 --socket x":                                   "without --context",
		"policy --context c1 --context c2 --kubeconfig /nowhere":           "this command is about one cluster",
		"status --part agent --kubeconfig /nowhere":                        "by --agent NODE",
		"rotate-key --all --part exporter --kubeconfig /nowhere":           "ask a broker",
		"explain --from a/b/c --to a/b --context c1 --context c2":          "this command is about one cluster",
		"drain list --context c1 --context c2 --kubeconfig /nowhere":       "this command is about one cluster",
		"drain cluster c2 --part exporter --context c1 --kubeconfig /nope": "only a broker",
	} {
		if _, code, err := run(t, strings.Fields(args)...); code != 1 || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: exit code %d, %v; want %q", args, code, err, want)
		}
	}
}
