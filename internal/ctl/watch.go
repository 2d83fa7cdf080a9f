package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func debugCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "debug", Short: "look at a part at work"}
	cmd.AddCommand(watchCommand())
	return cmd
}

func watchCommand() *cobra.Command {
	var t fleet.Target
	var output string
	var recent bool
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "stream what a part sees and does, a line an event, until Ctrl-C",
		Long: `Streams what a part sees and does, a line an event, until Ctrl-C: when, which part, where the change came from, what
happened to which object, how long after its source saw the change, and why.

A time such as +12ms is all of one clock; +12ms (c2's clock) runs from when c2 saw the change, on c2's clock, to the event,
on that of the part: a difference of the two clocks is in it, and can make it negative.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			print := printJSON
			switch output {
			case "text":
				print = new(columns).print
			case "json":
			default:
				return fmt.Errorf("--output %q: use text or json", output)
			}
			parts, err := t.Dial(cmd.Context())
			if err != nil {
				return err
			}
			return watch(cmd.Context(), cmd.OutOrStdout(), parts, recent, print)
		},
	}
	t.Flags(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	cmd.Flags().BoolVar(&recent, "recent", false, "also show the last events before now")
	return cmd
}

// watch prints the events of all parts as they come, until ctx ends or one of them stops.
func watch(ctx context.Context, w io.Writer, parts []*fleet.Part, recent bool, print func(io.Writer, *semaphorev1.WatchResponse) error) error {
	g, streaming := errgroup.WithContext(ctx)
	var mu sync.Mutex // of w
	for _, p := range parts {
		g.Go(func() error {
			defer p.Close()
			stream, err := p.Watch(streaming, &semaphorev1.WatchRequest{Recent: recent})
			if err != nil {
				return fmt.Errorf("watching %s: %s", p.Where, grpcstatus.Convert(err).Message())
			}
			for {
				m, err := stream.Recv()
				if errors.Is(err, io.EOF) {
					return fmt.Errorf("%s: the part has stopped", p.Where)
				}
				if err != nil {
					return fmt.Errorf("watching %s: %s", p.Where, grpcstatus.Convert(err).Message())
				}
				mu.Lock()
				err = print(w, m)
				mu.Unlock()
				if err != nil {
					return err
				}
			}
		})
	}
	if err := g.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// columns prints an event as one line: when, who, from where, what happened to which object, how long
// after its source saw it, and why. Columns grow with what they have held.
type columns struct{ who, source, action, object, lag int }

func (c *columns) print(w io.Writer, m *semaphorev1.WatchResponse) error {
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
	lag := ""
	if e.GetObservedAt() != nil {
		lag = e.GetTime().AsTime().Sub(e.GetObservedAt().AsTime()).Round(100 * time.Microsecond).String()
		if lag[0] != '-' {
			lag = "+" + lag
		}
		if e.GetSource() != "" && e.GetSource() != e.GetCluster() {
			lag += " (" + e.GetSource() + "'s clock)" // what it differs by from the part's is in it
		}
	}
	line := e.GetTime().AsTime().Local().Format("15:04:05.000")
	for _, column := range []struct {
		width *int
		text  string
	}{{&c.who, who}, {&c.source, source}, {&c.action, e.GetAction()}, {&c.object, e.GetObject()}, {&c.lag, lag}} {
		text := cli.Printable(column.text)
		*column.width = max(*column.width, utf8.RuneCountInString(text))
		line += fmt.Sprintf("  %-*s", *column.width, text)
	}
	line += "  " + cli.Printable(e.GetDetail())
	_, err := fmt.Fprintln(w, strings.TrimRight(line, " "))
	return err
}

func printJSON(w io.Writer, m *semaphorev1.WatchResponse) error {
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return err
	}
	return cli.PrintDocument(w, data, "json")
}
