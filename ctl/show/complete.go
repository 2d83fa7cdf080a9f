package show

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Bounds of the time of a completion, and of a request for it: a cluster that does not answer keeps no names of the
// others from the shell.
const (
	completeWithin    = 2 * time.Second
	CompleteAskWithin = completeWithin * 3 / 4
)

// Names returns the completions of an argument or a flag, for the typed text. Errors give no names, because a
// completion cannot print them.
type Names func(ctx context.Context, typed string) []string

// CompleteFlag panics only for a flag that the command does not have.
func CompleteFlag(cmd *cobra.Command, flag string, of Names) {
	if err := cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion,
		cobra.ShellCompDirective) {
		return offer(cmd, of, typed)
	}); err != nil {
		panic(err)
	}
}

func CompleteArg(cmd *cobra.Command, of Names) { CompleteArgs(cmd, 1, of) }

// CompleteArgs completes the first arguments of a command, all with the same names, and returns the command.
func CompleteArgs(cmd *cobra.Command, most int, of Names) *cobra.Command {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion,
		cobra.ShellCompDirective) {
		if len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return offer(cmd, of, typed)
	}
	return cmd
}

// offer returns names in time, or none, and makes the shell add no space after an incomplete one.
func offer(cmd *cobra.Command, of Names, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	parsedOnce(cmd)
	ctx := cmd.Context()
	if ctx == nil { // cobra has none while it completes flags
		ctx = context.Background()
	}
	found := slices.DeleteFunc(inTime(ctx, of, typed), func(name string) bool {
		return name == "" || !strings.HasPrefix(name, typed) || strings.ContainsFunc(name, foreign)
	})
	if slices.ContainsFunc(found, func(name string) bool { return strings.ContainsAny(name[len(name)-1:], "/:") }) {
		return found, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// parsedOnce removes the second of each value of a repeated flag: before a completion, cobra parses all flags twice.
func parsedOnce(cmd *cobra.Command) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if values, ok := f.Value.(pflag.SliceValue); ok {
			var once []string
			for _, value := range values.GetSlice() {
				if !slices.Contains(once, value) {
					once = append(once, value)
				}
			}
			_ = values.Replace(once) // they were parsed before
		}
	})
}

// inTime bounds calls that no context ends, too, such as a program that a kubeconfig runs for credentials.
func inTime(ctx context.Context, of Names, typed string) []string {
	ctx, cancel := context.WithTimeout(ctx, completeWithin)
	defer cancel()
	found := make(chan []string, 1)
	go func() {
		asking, cancel := context.WithTimeout(ctx, CompleteAskWithin)
		defer cancel()
		found <- of(asking, typed)
	}()
	select {
	case all := <-found:
		return all
	case <-ctx.Done():
		return nil
	}
}

// foreign reports whether a shell could take a character for more than a part of a name: shells insert completions into
// the command line as they are. No name of an object has such a character, whatever another cluster sends.
func foreign(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-._:/@+=", r)
}

func OneOf(all ...string) Names {
	return func(context.Context, string) []string { return slices.Clone(all) }
}
