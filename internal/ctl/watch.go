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

func debugCommand(access *fleet.Access) *cobra.Command {
	cmd := &cobra.Command{Use: "debug", Short: "watch a part at work"}
	cmd.AddCommand(watchCommand(access), traceCommand(access))
	return cmd
}

func watchCommand(access *fleet.Access) *cobra.Command {
	t := fleet.Target{Access: access, Parts: []string{fleet.Exporter, fleet.Broker, fleet.Agent}}
	var output *outputs
	var recent bool
	var only watchFilter
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "stream the events of a part, one line each, until Ctrl-C",
		Long: `Streams the events of a part, one line each, until Ctrl-C: the time, the part, the source of the change, what
happened to which object, how long after its source saw the change, and why.

A time such as +12ms is all of one clock; +12ms (c2's clock) runs from when c2 saw the change, on c2's clock,
to the event, on that of the part: a difference of the two clocks is in it, and can make it negative.

With the contexts of several clusters, a change can be followed through all parts: --kind service --of shop
--name echo shows it until it is received, and without --kind and --name also what is written.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := output.check(); err != nil {
				return err
			}
			print := printJSON
			if output.chosen == "text" {
				print = new(columns).print
			}
			parts, unreached := t.Dial(cmd.Context())
			if len(parts) == 0 {
				return unreached
			}
			if unreached != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), "not watched:", cli.Printable(unreached.Error()))
			}
			return watch(cmd.Context(), cmd.OutOrStdout(), parts, recent, func(w io.Writer, m *semaphorev1.WatchResponse) error {
				if e := m.GetEvent(); e != nil && !only.matches(e) {
					return nil
				}
				return print(w, m)
			})
		},
	}
	t.Flags(cmd)
	output = outputFlag(cmd, "text", "json")
	only.flags(cmd)
	cmd.Flags().BoolVar(&recent, "recent", false, "also show the last events before now")
	return cmd
}

// watch prints the events of all parts as they arrive, until ctx ends or one of them stops.
func watch(ctx context.Context, w io.Writer, parts []*fleet.Part, recent bool,
	print func(io.Writer, *semaphorev1.WatchResponse) error) error {
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

// columns prints an event as one line: when, by whom, from where, what happened to which object, how long after its
// source observed it, and why. Columns grow with their content.
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
			lag += " (" + e.GetSource() + "'s clock)" // the difference of the two clocks is included
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
