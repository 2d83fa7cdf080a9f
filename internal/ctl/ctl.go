// Package ctl is semaphorectl: it asks the parts over DebugService and shows their answers, and prints what an operator
// applies.
//
// Command composes the verbs; each has a file, or several with a common prefix. Package fleet reaches parts, package
// cli prints, and internal/diagnose judges what was collected. It imports no part.
//
// It changes a cluster only by orders to a broker, and by the verbs that install and link. Standard output can be piped
// into kubectl or a program; messages for a person go to standard error.
//
// Exit codes: 0 all is well; 1 wrong use, or a part cannot be reached; 2 the parts answer and something is wrong.
package ctl

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/program"
)

// The file name by which kubectl runs a plugin, and what people type for it
// (https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/).
const (
	pluginFile = "kubectl-semaphore"
	pluginName = "kubectl semaphore"
	// completeFile is what kubectl runs for names that the plugin completes.
	completeFile = "kubectl_complete-semaphore"
)

// Command returns semaphorectl.
func Command() *cobra.Command { return CommandAs("semaphorectl", nil) }

// CommandAs returns semaphorectl under a file name, with its arguments: the help of a kubectl plugin shows what people
// type for it.
func CommandAs(file string, args []string) *cobra.Command {
	access := &fleet.Access{}
	cmd := &cobra.Command{
		Use:   "semaphorectl",
		Short: "ask the parts of semaphore what they know and do; make keys and DNS blocks",
		Long: `Asks the parts of semaphore what they know and do; makes keys and DNS blocks.

It reaches the parts through the apiserver, as kubectl exec does and with the same rights; in the container of
a part, without --context, it asks that part.

Exit code, of every verb: 0 when all is well, 1 when it is used wrongly or cannot do what it is for, 2 when it has found
something wrong.`,
		Version:       program.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return refuseClusterFlags(cmd)
		},
	}
	access.Flags(cmd.PersistentFlags())
	completeFlag(cmd, "context", contexts(access))
	cmd.AddCommand(statusCommand(access), debugCommand(access), brakeCommand(access), drainCommand(access),
		undrainCommand(access),
		rotateKeyCommand(access), corednsCommand(access), policyCommand(access), explainCommand(access), pkiCommand(access),
		checkCommand(access), preflightCommand(access), verifyCommand(access), probeCommand(),
		migrateCommand(),
		versionCommand(), stdioCommand(access), installCommand(access), uninstallCommand(access),
		linkCommand(access), unlinkCommand(access), forgetCommand(access), renderCommand(),
		historyCommand(access), whoCommand(access), bundleCommand(access), graphCommand(access), dashboardCommand(access),
		previewCommand(access))
	switch strings.TrimSuffix(filepath.Base(file), ".exe") {
	case completeFile:
		cmd.SetArgs(append([]string{cobra.ShellCompRequestCmd}, args...))
	case pluginFile:
		cmd.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: pluginName}
		rename(cmd)
	}
	return cmd
}

// offlineVerbs are the verbs that reach no cluster.
var offlineVerbs = []string{"version", "stdio", "completion", "migrate", "render", "probe", "pki show", "pki secrets",
	"pki rotate-ca"}

// refuseClusterFlags returns an error for flags of clusters with a verb that reaches none.
func refuseClusterFlags(cmd *cobra.Command) error {
	_, verb, _ := strings.Cut(strings.TrimPrefix(cmd.CommandPath(), cmd.Root().DisplayName()), " ")
	if !slices.ContainsFunc(offlineVerbs, func(one string) bool {
		return verb == one || strings.HasPrefix(verb, one+" ")
	}) {
		return nil
	}
	for _, name := range []string{"context", "kubeconfig"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			return fmt.Errorf("--%s: %s reaches no cluster", name, cmd.CommandPath())
		}
	}
	return nil
}

// rename replaces the program's name in help texts by what people type for the plugin. Commands for a pod keep the
// name.
func rename(cmd *cobra.Command) {
	said := func(text string) string {
		var out strings.Builder
		for line := range strings.Lines(text) {
			if !strings.Contains(line, "exec ") {
				line = strings.ReplaceAll(line, "semaphorectl ", pluginName+" ")
			}
			out.WriteString(line)
		}
		return out.String()
	}
	cmd.Short, cmd.Long, cmd.Example = said(cmd.Short), said(cmd.Long), said(cmd.Example)
	cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Usage = said(f.Usage) })
	for _, sub := range cmd.Commands() {
		rename(sub)
	}
}

// heading prints which of several clusters the following lines are about.
func heading(w io.Writer, access *fleet.Access, p *fleet.Part) error {
	if len(access.Contexts) < 2 {
		return nil
	}
	_, err := fmt.Fprintf(w, "%s: ", p.Context)
	return err
}

// oneArg requires one argument, and names the one that is missing.
func oneArg(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("give one %s, not %d: %s %s", name, len(args), cmd.CommandPath(), name)
		}
		return nil
	}
}

// again returns a command for the cluster of a part, to be pasted. Without flags that name a cluster it is the verb
// alone: a command in a pod asks the part there.
func again(access *fleet.Access, p *fleet.Part, verb string) string {
	var contexts []string
	if len(access.Contexts) > 0 {
		contexts = []string{p.Context}
	}
	return command(verb, contexts, access.Kubeconfig, access.Namespace)
}

// commandFor returns a command for a cluster, to be pasted.
func commandFor(c *fleet.Cluster, verb string) string {
	return command(verb, []string{c.Context}, c.Kubeconfig, c.Namespace)
}

// command returns a command with the flags that select clusters, without flags that have their defaults.
func command(verb string, contexts []string, kubeconfig, namespace string) string {
	out := "semaphorectl " + verb
	for _, c := range contexts {
		out += " --context " + c
	}
	if kubeconfig != "" {
		out += " --kubeconfig " + kubeconfig
	}
	if namespace != "" && namespace != fleet.DefaultNamespace {
		out += " -n " + namespace
	}
	return cli.Printable(out)
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
