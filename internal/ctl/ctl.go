// Package ctl is semaphorectl: it asks the parts over DebugService and shows what they
// answer, and prints what an operator applies.
//
// Command puts the verbs together; each has a file of its own, or several of one beginning. How parts are reached is
// package fleet's, how is printed cli's, and what is wrong with what was collected is said by internal/diagnose. It
// imports no part.
//
// It changes a cluster only by what a broker is asked to do. What goes to standard output can be piped into kubectl or
// a program; what is for the person alone goes to standard error.
//
// Exit codes: 0 all is well; 1 wrong use, or what is asked cannot be reached; 2 it answers and something is wrong.
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

// The name of the file by which kubectl runs a plugin, and what people type for it then
// (https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/).
const (
	pluginFile = "kubectl-semaphore"
	pluginName = "kubectl semaphore"
	// completeFile is what kubectl runs for names that the plugin completes.
	completeFile = "kubectl_complete-semaphore"
)

// Command is semaphorectl.
func Command() *cobra.Command { return CommandAs("semaphorectl", nil) }

// CommandAs is semaphorectl as a program of some name, with its arguments: as a plugin of kubectl its help says so.
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
			return meansNothing(cmd)
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

// asksNobody are the verbs that reach no cluster.
var asksNobody = []string{"version", "stdio", "completion", "migrate", "render", "probe", "pki show", "pki secrets",
	"pki rotate-ca"}

// meansNothing is an error for flags of clusters with a verb that reaches none.
func meansNothing(cmd *cobra.Command) error {
	_, verb, _ := strings.Cut(strings.TrimPrefix(cmd.CommandPath(), cmd.Root().DisplayName()), " ")
	if !slices.ContainsFunc(asksNobody, func(one string) bool { return verb == one || strings.HasPrefix(verb, one+" ") }) {
		return nil
	}
	for _, name := range []string{"context", "kubeconfig"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			return fmt.Errorf("--%s: %s reaches no cluster", name, cmd.CommandPath())
		}
	}
	return nil
}

// rename has help texts say what people type for the plugin. What runs in a pod keeps its name.
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

// heading says which of several clusters the following is from.
func heading(w io.Writer, access *fleet.Access, p *fleet.Part) error {
	if len(access.Contexts) < 2 {
		return nil
	}
	_, err := fmt.Fprintf(w, "%s: ", p.Context)
	return err
}

// oneArg wants one argument, and names the one that is missing.
func oneArg(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("give one %s, not %d: %s %s", name, len(args), cmd.CommandPath(), name)
		}
		return nil
	}
}

// again is a verb for the cluster that a part is of, to be pasted. Without flags that name a cluster it is the verb
// alone: a command in a pod asks the part there.
func again(access *fleet.Access, p *fleet.Part, verb string) string {
	var contexts []string
	if len(access.Contexts) > 0 {
		contexts = []string{p.Context}
	}
	return command(verb, contexts, access.Kubeconfig, access.Namespace)
}

// commandFor is a verb for a cluster, to be pasted.
func commandFor(c *fleet.Cluster, verb string) string {
	return command(verb, []string{c.Context}, c.Kubeconfig, c.Namespace)
}

// command is a verb with the flags that say which clusters are meant; those that say what holds without them are left
// out.
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
