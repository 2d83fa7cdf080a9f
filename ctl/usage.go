package ctl

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
)

// The groups of verbs, by a person's purpose.
const (
	setUp    = "set-up"
	see      = "see"
	diagnose = "diagnose"
	operates = "operate"
)

var groups = []*cobra.Group{{ID: setUp, Title: "Set up:"}, {ID: see, Title: "See:"},
	{ID: diagnose, Title: "Diagnose:"}, {ID: operates, Title: "Operate:"}}

func inGroup(root *cobra.Command, group string, verbs ...*cobra.Command) {
	for _, verb := range verbs {
		verb.GroupID = group
	}
	root.AddCommand(verbs...)
}

// needVerb has a command that only has verbs refuse others: cobra prints help for them, with exit code 0.
func needVerb(cmd *cobra.Command) {
	if cmd.Runnable() || !cmd.HasSubCommands() {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return pflag.ErrHelp
		}
		var verbs []string
		for _, sub := range cmd.Commands() {
			verbs = append(verbs, sub.Name())
		}
		return fmt.Errorf("%s %s: unknown verb: use %s", cmd.CommandPath(), args[0], strings.Join(verbs, ", "))
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

// usage prints the verbs of a command in their groups, or its own flags: those of the connection are in options.
func usage(cmd *cobra.Command) error {
	var out strings.Builder
	fmt.Fprintln(&out, "Usage:")
	if cmd.Runnable() && !cmd.HasSubCommands() {
		fmt.Fprintf(&out, "  %s\n", cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&out, "  %s VERB\n", cmd.CommandPath())
	}
	writeVerbs(&out, cmd)
	if flags := ownFlags(cmd).FlagUsages(); flags != "" {
		fmt.Fprintf(&out, "\nFlags:\n%s", flags)
	}
	root := cmd.Root().CommandPath()
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&out, "\n%s VERB --help has more about a verb.\n", cmd.CommandPath())
	}
	fmt.Fprintf(&out, "\n%s options lists the flags that say which clusters are meant and how to reach them.\n", root)
	_, err := io.WriteString(cmd.OutOrStderr(), out.String())
	return err
}

// writeVerbs writes the subcommands of a command: those of each group, and the rest.
func writeVerbs(out *strings.Builder, cmd *cobra.Command) {
	section := func(title, group string) {
		for _, sub := range cmd.Commands() {
			if sub.GroupID != group || !sub.IsAvailableCommand() && sub.Name() != "help" {
				continue
			}
			if title != "" {
				fmt.Fprintf(out, "\n%s\n", title)
				title = ""
			}
			fmt.Fprintf(out, "  %-12s %s\n", sub.Name(), sub.Short)
		}
	}
	for _, g := range cmd.Groups() {
		section(g.Title, g.ID)
	}
	rest := "Verbs:"
	if len(cmd.Groups()) > 0 {
		rest = "More:"
	}
	section(rest, "")
}

func ownFlags(cmd *cobra.Command) *pflag.FlagSet {
	out := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if !fleet.OfConnection(f) && cmd.Root().PersistentFlags().Lookup(f.Name) != f {
			out.AddFlag(f)
		}
	})
	return out
}

func optionsCommand(access *fleet.Access) *cobra.Command {
	return &cobra.Command{
		Use:   "options",
		Short: "list the flags that say which clusters are meant and how to reach them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), options(cmd.Root(), access))
			return err
		},
	}
}

func options(root *cobra.Command, access *fleet.Access) string {
	parts := &cobra.Command{}
	(&fleet.Target{Access: access}).Flags(parts)
	return "Verbs that reach a cluster have these:\n\n" + root.PersistentFlags().FlagUsages() +
		"\nVerbs that ask parts have these, too, to reach one without an apiserver:\n\n" + parts.Flags().FlagUsages()
}
