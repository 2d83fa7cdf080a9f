package show

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/internal/program"
)

// OneArg requires one argument, and names the one that is missing.
func OneArg(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("give one %s, not %d: %s %s", name, len(args), cmd.CommandPath(), name)
		}
		return nil
	}
}

// Required panics only on a flag that the command does not have.
func Required(cmd *cobra.Command, flags ...string) {
	for _, f := range flags {
		if err := cmd.MarkFlagRequired(f); err != nil {
			panic(err)
		}
	}
}

// TimeoutFlag adds --timeout, which has one meaning for all verbs: after it, the verb ends without the outcome that it
// waits for.
func TimeoutFlag(cmd *cobra.Command, timeout *time.Duration, standard time.Duration) {
	cmd.Flags().DurationVar(timeout, "timeout", standard, "how long to wait before giving up")
}

// ClusterFlag adds --cluster, which has one meaning for all verbs: the name by which other clusters know one. use says
// where it counts.
func ClusterFlag(cmd *cobra.Command, name *string, use string) {
	cmd.Flags().StringVar(name, "cluster", "", "`name` of a cluster, by which others know it; "+use)
}

// DryRun is the value of --dry-run, which has one meaning for all verbs: they change nothing, and print their plan. Its
// values are kubectl's.
type DryRun struct{ choice }

func (d *DryRun) On() bool { return d.Chosen == "client" }

func DryRunFlag(cmd *cobra.Command, d *DryRun) {
	d.choice = choice{of: []string{"client", "none"}, Chosen: "none"}
	d.flag(cmd, "dry-run", "", "client changes nothing, and prints what would be done")
	cmd.Flags().Lookup("dry-run").NoOptDefVal = "client"
}

// YesFlag adds --yes of a verb that prints its plan, and without the flag does no more.
func YesFlag(cmd *cobra.Command, yes *bool) {
	cmd.Flags().BoolVar(yes, "yes", false, "do it; without it, only print what would be done")
}

// OnlyPlanned returns the error that ends a verb which printed its plan, and did not get --yes: that is no fault, so
// its exit code is 0.
func OnlyPlanned(done string) error {
	return program.ExitError{Code: 0, Err: errors.New("nothing was " + done + ": --yes does it")}
}
