package ctl

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// drainable are the kinds of targets, and how each is written.
var drainable = []struct {
	kind, argument, short string
	// names completes targets that can be drained.
	names func(*fleet.Target) names
	parse func(string) (*semaphorev1.DrainTarget, error)
}{
	{"cluster", "CLUSTER", "all endpoints of a cluster",
		func(t *fleet.Target) names { return ofStatus(t, clustersLinked) },
		func(s string) (*semaphorev1.DrainTarget, error) { return &semaphorev1.DrainTarget{Cluster: s}, nil }},
	{"service", "[CLUSTER:]NAMESPACE/NAME", "a service of one cluster, or of all", drainableServices,
		func(s string) (*semaphorev1.DrainTarget, error) {
			cluster, service, of := strings.Cut(s, ":")
			if !of {
				cluster, service = "", s
			}
			namespace, name, ok := strings.Cut(service, "/")
			if !ok || of && cluster == "" || namespace == "" || name == "" {
				return nil, fmt.Errorf("%q: use NAMESPACE/NAME for a service of all clusters, or CLUSTER:NAMESPACE/NAME", s)
			}
			return &semaphorev1.DrainTarget{Cluster: cluster, Namespace: namespace, Service: name}, nil
		}},
	{"node", "CLUSTER/NODE", "the pods of a node", drainableNodes, func(s string) (*semaphorev1.DrainTarget, error) {
		cluster, node, ok := strings.Cut(s, "/")
		if !ok || cluster == "" || node == "" {
			return nil, fmt.Errorf("%q: use CLUSTER/NODE", s)
		}
		return &semaphorev1.DrainTarget{Cluster: cluster, Node: node}, nil
	}},
}

func drainCommand(access *fleet.Access) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "stop using the endpoints of a cluster, a service or a node here, although they are ready",
		Long: `Makes the broker's cluster, and no other, stop using endpoints: new connections go to other endpoints, and
existing connections stay. The drained cluster is not involved and may be down. The drain is stored in the
ConfigMap semaphore-drains of the mirrors' namespace until "semaphorectl undrain", or for the time of --for.`,
		Args: cobra.NoArgs,
	}
	for _, d := range drainable {
		t := fleet.Target{Access: access, Parts: []string{fleet.Broker}}
		var timeout, lasts time.Duration
		req := &semaphorev1.DrainRequest{}
		sub := &cobra.Command{
			Use:   d.kind + " " + d.argument,
			Short: d.short,
			Args:  oneArg(d.argument),
			RunE: func(cmd *cobra.Command, args []string) error {
				var err error
				if req.Target, err = d.parse(args[0]); err != nil {
					return err
				}
				if cmd.Flags().Changed("for") {
					if lasts < time.Second {
						return fmt.Errorf("--for %s: use 1s or more", lasts)
					}
					req.Lasts = durationpb.New(lasts)
				}
				return t.Brokers(cmd.Context(), timeout, "drains", "a broker", func(ctx context.Context, p *fleet.Part) error {
					answer, err := p.Control().Drain(ctx, req)
					if err != nil {
						return err
					}
					if err := heading(cmd.OutOrStdout(), access, p); err != nil {
						return err
					}
					if err := printDrained(cmd.OutOrStdout(), answer, req.GetDryRun()); err != nil {
						return err
					}
					if req.GetDryRun() {
						_, err = fmt.Fprintln(cmd.OutOrStdout(), "nothing was changed: without --dry-run it is drained")
						return err
					}
					_, err = fmt.Fprintf(cmd.OutOrStdout(), "to use it again: %s\n",
						again(access, p, "undrain "+targetName(req.Target)))
					return err
				})
			},
		}
		t.Flags(sub)
		completeArg(sub, d.names(&t))
		f := sub.Flags()
		f.DurationVar(&lasts, "for", 0, "end after this time, such as 2h (default: never)")
		f.StringVar(&req.By, "by", "", "who drains and why, for other operators")
		f.BoolVar(&req.DryRun, "dry-run", false, "only print what it would do")
		f.DurationVar(&timeout, "timeout", 10*time.Second, "how long to wait for the answer")
		if d.kind == "node" {
			f.StringSliceVar(&req.Prefixes, "prefix", nil,
				"a subnet of the node's pods; may be repeated (default: those that the broker knows of)")
		}
		cmd.AddCommand(sub)
	}
	cmd.AddCommand(drainListCommand(access))
	return cmd
}

func undrainCommand(access *fleet.Access) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "undrain",
		Short: "use drained endpoints again",
		Args:  cobra.NoArgs,
	}
	for _, d := range drainable {
		t := fleet.Target{Access: access, Parts: []string{fleet.Broker}}
		var timeout time.Duration
		sub := &cobra.Command{
			Use:   d.kind + " " + d.argument,
			Short: d.short,
			Args:  oneArg(d.argument),
			RunE: func(cmd *cobra.Command, args []string) error {
				what, err := d.parse(args[0])
				if err != nil {
					return err
				}
				return t.Brokers(cmd.Context(), timeout, "drains", "a broker", func(ctx context.Context, p *fleet.Part) error {
					if _, err := p.Control().Undrain(ctx, &semaphorev1.UndrainRequest{Target: what}); err != nil {
						return err
					}
					if err := heading(cmd.OutOrStdout(), access, p); err != nil {
						return err
					}
					_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is no longer drained\nto see what still is: %s\n",
						cli.Printable(targetName(what)), again(access, p, "drain list"))
					return err
				})
			},
		}
		t.Flags(sub)
		completeArg(sub, ofStatus(&t, drained(d.kind)))
		sub.Flags().DurationVar(&timeout, "timeout", 10*time.Second, "how long to wait for the answer")
		cmd.AddCommand(sub)
	}
	return cmd
}

func drainListCommand(access *fleet.Access) *cobra.Command {
	t := fleet.Target{Access: access, Parts: []string{fleet.Broker}}
	var output *outputs
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "list",
		Short: "what is drained here, by whom and until when",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := output.check(); err != nil {
				return err
			}
			s, err := t.Broker(cmd.Context(), timeout, "drains")
			if err != nil {
				return err
			}
			if output.chosen == "table" {
				return drainTable(cmd.OutOrStdout(), s)
			}
			data, err := protojson.MarshalOptions{UseProtoNames: true,
				Indent: "  "}.Marshal(&semaphorev1.GetStatusResponse{Drains: s.GetDrains()})
			if err != nil {
				return err
			}
			return cli.PrintDocument(cmd.OutOrStdout(), data, output.chosen)
		},
	}
	t.Flags(cmd)
	output = outputFlag(cmd, "table", "json", "yaml")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	return cmd
}

// targetName returns a name such as "cluster c2", "service c2:shop/echo" or "node c2/n1".
func targetName(t *semaphorev1.DrainTarget) string {
	switch {
	case t.GetNode() != "":
		return "node " + t.GetCluster() + "/" + t.GetNode()
	case t.GetService() == "":
		return "cluster " + t.GetCluster()
	case t.GetCluster() == "":
		return "service " + t.GetNamespace() + "/" + t.GetService()
	}
	return "service " + t.GetCluster() + ":" + t.GetNamespace() + "/" + t.GetService()
}

func printDrained(w io.Writer, answer *semaphorev1.DrainResponse, dry bool) error {
	d := answer.GetDrain()
	does := "is drained"
	if dry {
		does = "would be drained"
	}
	until := ""
	if d.GetUntil() != nil {
		until = " until " + d.GetUntil().AsTime().Format(time.RFC3339)
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s %s%s: %s of %s not used here\n", targetName(d.GetTarget()), does, until,
		number(d.GetEndpoints(), "ready endpoint", "ready endpoints"), number(d.GetServices(), "service", "services"))
	if len(d.GetPrefixes()) > 0 {
		fmt.Fprintf(&text, "its pods are in %s\n", strings.Join(d.GetPrefixes(), ", "))
	}
	for _, warning := range answer.GetWarnings() {
		fmt.Fprintf(&text, "warning: %s\n", warning)
	}
	return cli.PrintLines(w, text.String())
}

func drainTable(w io.Writer, s *semaphorev1.GetStatusResponse) error {
	if len(s.GetDrains()) == 0 {
		_, err := fmt.Fprintf(w, "nothing is drained in %s; semaphorectl drain cluster, service or node does it\n",
			cli.Printable(s.GetCluster()))
		return err
	}
	var text bytes.Buffer
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	writeDrains(t, s)
	if err := t.Flush(); err != nil {
		return err
	}
	return cli.PrintLines(w, strings.TrimLeft(text.String(), "\n"))
}

// writeDrains prints a line for each drain of a broker.
func writeDrains(w io.Writer, s *semaphorev1.GetStatusResponse) {
	if len(s.GetDrains()) == 0 {
		return
	}
	fmt.Fprintln(w, "\nDRAINED\tFOR\tLEFT\tENDPOINTS\tSERVICES\tBY\tSUBNETS")
	for _, d := range s.GetDrains() {
		left := "until undrained"
		if d.GetUntil() != nil {
			left = short(max(0, d.GetUntil().AsTime().Sub(s.GetNow().AsTime())))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%s\n", targetName(d.GetTarget()), since(s, d.GetSince()), left,
			d.GetEndpoints(), d.GetServices(), cli.Printable(d.GetBy()), strings.Join(d.GetPrefixes(), " "))
	}
}
