package ctl

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/diagnose/mesh"
	"github.com/kube-semaphore/semaphore/internal/diagnose/picture"
	"github.com/kube-semaphore/semaphore/internal/program"
)

func graphCommand(access *fleet.Access) *cobra.Command {
	var output *outputs
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "graph",
		Short: "draw the mesh as SVG, DOT or Mermaid",
		Long: `Draws what "semaphorectl status" says of the same clusters: a box for each cluster, a line for what two
clusters take of each other, coloured and dashed by the worst finding about it, with the bytes a second through the
tunnels. Below are the links with their tunnels, handshakes, objects and traffic, the Services with the most traffic
where agents count it, and the findings.

SVG is for a browser and has colours for light and dark; DOT is for Graphviz, Mermaid for Markdown. A picture has at
most 24 boxes, 40 links, 10 Services and 10 findings: beyond, clusters without findings share a box. No format runs or
loads anything.

  semaphorectl graph --context c1 --context c2 > mesh.svg
  semaphorectl graph -o dot | dot -Tpng > mesh.png
  semaphorectl graph -o mermaid

Exit code 0 when all is well, 1 when nothing can be asked, 2 when something is wrong.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := output.check(); err != nil {
				return err
			}
			return graph(cmd.Context(), cmd.OutOrStdout(), access, output.chosen, timeout)
		},
	}
	output = outputFlag(cmd, "svg", "dot", "mermaid")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	return cmd
}

func graph(ctx context.Context, w io.Writer, access *fleet.Access, output string, timeout time.Duration) error {
	facts, m, err := meshOf(ctx, access, timeout)
	if err != nil {
		return err
	}
	if err := draw(w, m, output); err != nil {
		return err
	}
	return exitOf(facts, m)
}

func draw(w io.Writer, m *mesh.Mesh, output string) error {
	p := picture.Of(m)
	formats := map[string]func() string{"svg": p.SVG, "dot": p.DOT, "mermaid": p.Mermaid}
	_, err := io.WriteString(w, formats[output]())
	return err
}

// exitOf is the error, with its exit code, for a mesh that was shown.
func exitOf(facts []mesh.Facts, m *mesh.Mesh) error {
	reached := false
	for _, f := range facts {
		reached = reached || len(f.Parts) > 0
	}
	switch {
	case !reached:
		return errors.New(cli.Printable(m.Verdict))
	case !m.Well:
		return program.ExitError{Code: cli.ExitWrong, Err: errors.New(cli.Printable(m.Verdict))}
	}
	return nil
}
