package status

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func nodesCommand(access *fleet.Access) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "the nodes of a cluster, with their agents and what is wrong there",
		Long: `Prints the nodes of a cluster as its broker knows them: whether the agent is attached and since when, how many
changes it has not programmed yet, its devices, and the packets in the clear that the guard dropped.

Exit code 0 when all nodes are well, 1 when no working broker answers, 2 when one is not.`,
	}
	return ofStatus(access, cmd, "knows the nodes",
		func(w io.Writer, s *semaphorev1.GetStatusResponse, output string) error {
			if err := printNodes(w, s, output); err != nil {
				return err
			}
			var wrong []string
			for _, n := range s.GetNodes() {
				if !n.GetAttached() && n.GetWithoutEncryption() == "" || len(n.GetProblems()) > 0 {
					wrong = append(wrong, n.GetNode())
				}
			}
			return show.Wrong(wrong, len(s.GetNodes()), "nodes are not well")
		})
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
	var text strings.Builder
	text.WriteString(show.Tabbed(func(t io.Writer) { show.Nodes(t, s) }))
	for _, n := range s.GetNodes() {
		problems := slices.Clone(n.GetProblems())
		slices.Sort(problems)
		for _, p := range problems {
			fmt.Fprintln(&text, strings.Join(finding.Wrap(show.Printable(n.GetNode()+": "+p), "  ", show.LineWidth), "\n"))
		}
	}
	return show.PrintLines(w, strings.TrimLeft(text.String(), "\n"))
}
