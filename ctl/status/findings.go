package status

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/diagnose/mesh"
)

func findingsCommand(access *fleet.Access) *cobra.Command {
	var output *show.Outputs
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "findings",
		Short: "what is wrong, without the rest of status",
		Long: `Prints the findings of "semaphorectl status" of the same clusters: each with its code, its evidence, who can
act, and one command. docs/findings.md has all codes.

Exit code 0 when all is well, 1 when nothing can be asked, 2 when something is wrong.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			facts, m, err := gather(cmd.Context(), access, timeout)
			if err != nil {
				return err
			}
			if err := printFindings(cmd.OutOrStdout(), m, output.Chosen); err != nil {
				return err
			}
			return Exit(facts, m)
		},
	}
	output = show.OutputFlag(cmd, "table", "json", "yaml")
	show.TimeoutFlag(cmd, &timeout, 5*time.Second)
	return cmd
}

func printFindings(w io.Writer, m *mesh.Mesh, output string) error {
	if output != "table" {
		return show.PrintValue(w, map[string]any{"findings": append([]mesh.Finding{}, m.Findings...)}, output)
	}
	if len(m.Findings) == 0 {
		var names []string
		for _, c := range m.Clusters {
			names = append(names, c.Name)
		}
		slices.Sort(names)
		_, err := fmt.Fprintf(w, "nothing is wrong in %s\n", show.Printable(strings.Join(names, ", ")))
		return err
	}
	var out strings.Builder
	Findings(&out, m, show.LineWidth)
	return show.PrintLines(w, out.String())
}
