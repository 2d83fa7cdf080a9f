package get

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func drainsCommand(access *fleet.Access) *cobra.Command {
	t := fleet.Target{Access: access, Parts: []string{fleet.Broker}}
	var output *show.Outputs
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "drains",
		Short: "what is drained here, by whom and until when",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := output.Check(); err != nil {
				return err
			}
			s, err := t.Broker(cmd.Context(), timeout, "drains")
			if err != nil {
				return err
			}
			if output.Chosen == "table" {
				return drainTable(cmd.OutOrStdout(), s)
			}
			return show.PrintMessage(cmd.OutOrStdout(), &semaphorev1.GetStatusResponse{Drains: s.GetDrains()}, output.Chosen)
		},
	}
	t.Flags(cmd)
	output = show.OutputFlag(cmd, "table", "json", "yaml")
	show.TimeoutFlag(cmd, &timeout, 5*time.Second)
	return cmd
}

func drainTable(w io.Writer, s *semaphorev1.GetStatusResponse) error {
	if len(s.GetDrains()) == 0 {
		_, err := fmt.Fprintf(w, "nothing is drained in %s; semaphorectl drain cluster, service or node does it\n",
			show.Printable(s.GetCluster()))
		return err
	}
	var text bytes.Buffer
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	show.Drains(t, s)
	if err := t.Flush(); err != nil {
		return err
	}
	return show.PrintLines(w, strings.TrimLeft(text.String(), "\n"))
}
