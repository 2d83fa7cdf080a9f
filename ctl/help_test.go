package ctl

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

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
	ctltest.Refuses(t, map[string]string{
		"version --context c1":                                             "reaches no cluster",
		"--kubeconfig f pki show --dir d":                                  "reaches no cluster",
		"pki secrets --dir d --context c1":                                 "reaches no cluster",
		"status --context c1 --kubeconfig /nowhere":                        "stat /nowhere",
		"status --context c1 --context c1 --kubeconfig /nowhere":           "given twice",
		"status --context c1 --socket x":                                   "without --context",
		"get sets --context c1 --context c2 --kubeconfig /nowhere":         "this command is about one cluster",
		"status --part agent --kubeconfig /nowhere":                        "by --agent NODE",
		"rotate-key --all --part exporter --kubeconfig /nowhere":           "only a broker",
		"explain --from a/b/c --to a/b --context c1 --context c2":          "this command is about one cluster",
		"get drains --context c1,c2 --kubeconfig /nowhere":                 "this command is about one cluster",
		"drain cluster c2 --part exporter --context c1 --kubeconfig /nope": "only a broker",
	})
}

// TestGroups: each verb is in a group of what a person looks for, and the help has the flags of the connection only in
// options.
func TestGroups(t *testing.T) {
	for _, cmd := range Command().Commands() {
		more := []string{"version", "options", "completion", "help"}
		if !cmd.Hidden && (cmd.GroupID == "") != slices.Contains(more, cmd.Name()) {
			t.Errorf("%s: group %q", cmd.Name(), cmd.GroupID)
		}
	}
	help, _, err := ctltest.Run(t, "drain", "cluster", "--help")
	must(t, err)
	options, _, err := ctltest.Run(t, "options")
	must(t, err)
	for _, flag := range []string{"--context ", "--all-contexts ", "--kubeconfig ", "--socket ", "--address ", "--part ",
		"--cluster ", "--tls-dir "} {
		if strings.Contains(help, flag) || !strings.Contains(options, flag) {
			t.Errorf("%s: in the help of a verb, or not in options:\n%s\n%s", flag, help, options)
		}
	}
	if !strings.Contains(help, "semaphorectl options") || !strings.Contains(help, "--timeout ") {
		t.Errorf("no word of options, or not its own flags:\n%s", help)
	}
}

// TestOneMeaning: flags that several verbs have mean the same.
func TestOneMeaning(t *testing.T) {
	said := map[string]string{}
	for _, cmd := range all(Command()) {
		for _, name := range []string{"timeout", "dry-run", "cluster"} {
			f := cmd.Flags().Lookup(name)
			if f == nil {
				continue
			}
			usage, _, _ := strings.Cut(f.Usage, ";")
			if said[name] == "" {
				said[name] = usage
			}
			if usage != said[name] {
				t.Errorf("%s --%s: %q, and elsewhere %q", cmd.CommandPath(), name, usage, said[name])
			}
		}
		if f := cmd.Flags().ShorthandLookup("f"); f != nil && f.Name != "filename" {
			t.Errorf("%s: -f is --%s", cmd.CommandPath(), f.Name)
		}
		if f := cmd.Flags().ShorthandLookup("o"); f != nil && f.Name != "output" {
			t.Errorf("%s: -o is --%s", cmd.CommandPath(), f.Name)
		}
	}
}
