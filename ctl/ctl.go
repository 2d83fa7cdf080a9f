// Package ctl is semaphorectl: it asks the parts over DebugService and shows their answers, and prints objects that an
// operator applies.
//
// Command composes the verbs; each family of them has a room below. They share show, which prints, fleet, which reaches
// parts, read and apply, which read and write objects of a cluster.
//
// It changes a cluster only by orders to a broker, and by the verbs that install and link. Standard output can be piped
// into kubectl or a program; messages for a person go to standard error.
//
// Exit codes: 0 all is well; 1 wrong use, or a part cannot be reached; 2 the parts answer and something is wrong; 3
// nothing is wrong as far as check could look.
package ctl

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kube-semaphore/semaphore/ctl/bundle"
	"github.com/kube-semaphore/semaphore/ctl/certs"
	"github.com/kube-semaphore/semaphore/ctl/check"
	"github.com/kube-semaphore/semaphore/ctl/dns"
	"github.com/kube-semaphore/semaphore/ctl/explain"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/install"
	"github.com/kube-semaphore/semaphore/ctl/link"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/ctl/status"
	"github.com/kube-semaphore/semaphore/ctl/trace"
	"github.com/kube-semaphore/semaphore/ctl/verify"
	"github.com/kube-semaphore/semaphore/internal/program"
)

// The file name by which kubectl runs a plugin, and the words to type for it
// (https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/).
const (
	pluginFile = "kubectl-semaphore"
	pluginName = "kubectl semaphore"
	// completeFile is the program that kubectl runs for names that the plugin completes.
	completeFile = "kubectl_complete-semaphore"
)

func Command() *cobra.Command { return CommandAs("semaphorectl", nil) }

// CommandAs returns semaphorectl under a file name, with its arguments: the help of a kubectl plugin shows the words to
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
something wrong, 3 when check has found nothing wrong and could not look at everything.`,
		Version:       program.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := refuseClusterFlags(cmd); err != nil {
				return err
			}
			return access.Resolve()
		},
	}
	access.Flags(cmd.PersistentFlags())
	show.CompleteFlag(cmd, "context", fleet.CompleteContexts(access))
	cmd.SetUsageFunc(usage)
	cmd.AddGroup(groups...)
	inGroup(cmd, setUp, install.Command(access), install.Uninstall(access), link.Command(access), link.Unlink(access),
		certs.Command(access), migrateCommand(), dns.Command(access))
	inGroup(cmd, see, status.Command(access), status.GetCommand(access))
	inGroup(cmd, diagnose, check.Command(access), explain.Command(access), trace.Command(access), bundle.Command(access))
	inGroup(cmd, operates, status.Drain(access), status.Undrain(access), status.Release(access),
		status.RotateKey(access))
	cmd.AddCommand(versionCommand(), optionsCommand(access), stdioCommand(access), verify.Probe())
	cmd.InitDefaultCompletionCmd()
	for _, sub := range cmd.Commands() {
		needVerb(sub)
	}
	switch strings.TrimSuffix(filepath.Base(file), ".exe") {
	case completeFile:
		cmd.SetArgs(append([]string{cobra.ShellCompRequestCmd}, args...))
	case pluginFile:
		cmd.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: pluginName}
		rename(cmd)
	}
	return cmd
}

var offlineVerbs = []string{"version", "options", "stdio", "completion", "migrate", "probe", "pki show", "pki secrets",
	"pki rotate-ca"}

// refuseClusterFlags returns an error for flags of clusters with a verb that reaches none.
func refuseClusterFlags(cmd *cobra.Command) error {
	_, verb, _ := strings.Cut(strings.TrimPrefix(cmd.CommandPath(), cmd.Root().DisplayName()), " ")
	if !slices.ContainsFunc(offlineVerbs, func(one string) bool {
		return verb == one || strings.HasPrefix(verb, one+" ")
	}) {
		return nil
	}
	for _, name := range []string{"context", "all-contexts", "kubeconfig"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			return fmt.Errorf("--%s: %s reaches no cluster", name, cmd.CommandPath())
		}
	}
	return nil
}

// rename replaces the program's name in help texts by the words to type for the plugin. Commands for a pod keep the
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
