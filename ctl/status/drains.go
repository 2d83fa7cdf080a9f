package status

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func drainsCommand(access *fleet.Access) *cobra.Command {
	cmd := &cobra.Command{Use: "drains", Short: "what is drained here, by whom and until when"}
	return ofStatus(access, cmd, "drains", printDrains)
}

func printDrains(w io.Writer, s *semaphorev1.GetStatusResponse, output string) error {
	var err, wrong error
	for _, f := range s.GetFindings() {
		if f.GetCode() == string(finding.DrainsFailed) {
			wrong = program.ExitError{Code: show.ExitWrong, Err: errors.New(show.Printable(finding.Text(f)))}
		}
	}
	switch {
	case output != "table":
		err = show.PrintMessage(w, &semaphorev1.GetStatusResponse{Drains: s.GetDrains()}, output)
	case len(s.GetDrains()) > 0:
		text := show.Tabbed(func(t io.Writer) { show.Drains(t, s) })
		err = show.PrintLines(w, strings.TrimLeft(text, "\n"))
	case wrong == nil:
		_, err = fmt.Fprintf(w, "nothing is drained in %s; semaphorectl drain cluster, service or node does it\n",
			show.Printable(s.GetCluster()))
	}
	return cmp.Or(err, wrong)
}
