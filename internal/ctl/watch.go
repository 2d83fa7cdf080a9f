package ctl

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func debugCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "debug", Short: "look at a part at work"}
	cmd.AddCommand(watchCommand())
	return cmd
}

func watchCommand() *cobra.Command {
	var t target
	var output string
	var recent bool
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "stream what a part sees and does, a line an event, until Ctrl-C",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			print := printEvent
			switch output {
			case "text":
			case "json":
				print = printJSON
			default:
				return fmt.Errorf("--output %q: use text or json", output)
			}
			client, conn, err := t.dial()
			if err != nil {
				return err
			}
			defer conn.Close()
			stream, err := client.Watch(cmd.Context(), &semaphorev1.WatchRequest{Recent: recent})
			if err != nil {
				return fmt.Errorf("watching: %w", err)
			}
			for {
				m, err := stream.Recv()
				switch {
				case errors.Is(err, io.EOF):
					return errors.New("the part has stopped")
				case status.Code(err) == codes.Canceled && cmd.Context().Err() != nil:
					return nil
				case err != nil:
					return fmt.Errorf("watching: %w", err)
				}
				if err := print(cmd.OutOrStdout(), m); err != nil {
					return err
				}
			}
		},
	}
	t.flags(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	cmd.Flags().BoolVar(&recent, "recent", false, "also show the last events before now")
	return cmd
}

// printEvent is one line: when, who, from where, what happened to which object, why, and how long
// after its source saw it.
func printEvent(w io.Writer, m *semaphorev1.WatchResponse) error {
	if lost := m.GetLost(); lost > 0 {
		_, err := fmt.Fprintf(w, "… %d events lost: this reader was too slow\n", lost)
		return err
	}
	e := m.GetEvent()
	who := e.GetPart() + "/" + e.GetCluster()
	if e.GetNode() != "" {
		who += "/" + e.GetNode()
	}
	source := "-"
	if e.GetSource() != "" {
		source = e.GetSource()
	}
	line := fmt.Sprintf("%s  %-14s %-4s %-12s %s", e.GetTime().AsTime().Local().Format("15:04:05.000"), who, source, e.GetAction(), e.GetObject())
	if e.GetDetail() != "" {
		line += "  " + e.GetDetail()
	}
	if e.GetObservedAt() != nil {
		// Across clusters this holds the difference of two clocks.
		line += fmt.Sprintf("  (+%s)", e.GetTime().AsTime().Sub(e.GetObservedAt().AsTime()).Round(100*time.Microsecond))
	}
	_, err := fmt.Fprintln(w, strings.TrimRight(line, " "))
	return err
}

func printJSON(w io.Writer, m *semaphorev1.WatchResponse) error {
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", data)
	return err
}
