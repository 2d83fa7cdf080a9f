package get

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func nodesCommand(access *fleet.Access) *cobra.Command {
	t := fleet.Target{Access: access, Parts: []string{fleet.Broker}}
	var output *show.Outputs
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "the nodes of a cluster, with their agents and what is wrong there",
		Long: `Prints the nodes of a cluster as its broker knows them: whether the agent is attached and since when, how many
changes it has not programmed yet, its devices, and the packets in the clear that the guard dropped.

Exit code 0 when all nodes are well, 1 when the broker cannot be asked, 2 when one is not.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := output.Check(); err != nil {
				return err
			}
			s, err := t.Broker(cmd.Context(), timeout, "knows the nodes")
			if err != nil {
				return err
			}
			if err := printNodes(cmd.OutOrStdout(), s, output.Chosen); err != nil {
				return err
			}
			var wrong []string
			for _, n := range s.GetNodes() {
				if !n.GetAttached() && n.GetWithoutEncryption() == "" || len(n.GetProblems()) > 0 {
					wrong = append(wrong, show.Printable(n.GetNode()))
				}
			}
			if len(wrong) > 0 {
				return program.ExitError{Code: show.ExitWrong, Err: fmt.Errorf("%d of %d nodes are not well: %s", len(wrong),
					len(s.GetNodes()), show.SomeOf(wrong))}
			}
			return nil
		},
	}
	t.Flags(cmd)
	output = show.OutputFlag(cmd, "table", "json", "yaml")
	show.TimeoutFlag(cmd, &timeout, 5*time.Second)
	return cmd
}

func printNodes(w io.Writer, s *semaphorev1.GetStatusResponse, output string) error {
	if output != "table" {
		return show.PrintMessage(w, &semaphorev1.GetStatusResponse{Cluster: s.GetCluster(), Now: s.GetNow(),
			Nodes: s.GetNodes()}, output)
	}
	if len(s.GetNodes()) == 0 {
		_, err := fmt.Fprintf(w, "the broker of %s has no nodes: it does not have the feature encryption\n",
			show.Printable(s.GetCluster()))
		return err
	}
	var text bytes.Buffer
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	show.Nodes(t, s)
	if err := t.Flush(); err != nil {
		return err
	}
	for _, n := range s.GetNodes() {
		problems := slices.Clone(n.GetProblems())
		slices.Sort(problems)
		for _, p := range problems {
			fmt.Fprintln(&text, strings.Join(show.Wrap(show.Printable(n.GetNode()+": "+p), "  ", show.LineWidth), "\n"))
		}
	}
	return show.PrintLines(w, strings.TrimLeft(text.String(), "\n"))
}
