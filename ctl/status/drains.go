package status

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func drainsCommand(access *fleet.Access) *cobra.Command {
	cmd := &cobra.Command{Use: "drains", Short: "what is drained here, by whom and until when"}
	return ofStatus(access, cmd, "drains", printDrains)
}

func printDrains(w io.Writer, s *semaphorev1.GetStatusResponse, output string) error {
	if output != "table" {
		return show.PrintMessage(w, &semaphorev1.GetStatusResponse{Drains: s.GetDrains()}, output)
	}
	if len(s.GetDrains()) == 0 {
		_, err := fmt.Fprintf(w, "nothing is drained in %s; semaphorectl drain cluster, service or node does it\n",
			show.Printable(s.GetCluster()))
		return err
	}
	text := show.Tabbed(func(t io.Writer) { show.Drains(t, s) })
	return show.PrintLines(w, strings.TrimLeft(text, "\n"))
}
