package status

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// drainable are the kinds of targets, and how each is written.
var drainable = []struct {
	kind, argument, short string
	names                 func(*fleet.Target) show.Names
	parse                 func(string) (*semaphorev1.DrainTarget, error)
}{
	{"cluster", "CLUSTER", "all endpoints of a cluster",
		func(t *fleet.Target) show.Names { return fleet.CompleteStatus(t, fleet.LinkedOf) },
		func(s string) (*semaphorev1.DrainTarget, error) { return &semaphorev1.DrainTarget{Cluster: s}, nil }},
	{"service", "[CLUSTER:]NAMESPACE/NAME", "a service of one cluster, or of all", fleet.CompleteServices,
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
	{"node", "CLUSTER/NODE", "the pods of a node", fleet.CompleteNodes, func(s string) (*semaphorev1.DrainTarget, error) {
		cluster, node, ok := strings.Cut(s, "/")
		if !ok || cluster == "" || node == "" {
			return nil, fmt.Errorf("%q: use CLUSTER/NODE", s)
		}
		return &semaphorev1.DrainTarget{Cluster: cluster, Node: node}, nil
	}},
}

func Drain(access *fleet.Access) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "stop using the endpoints of a cluster, a service or a node here, although they are ready",
		Long: `Makes the broker's cluster, and no other, stop using endpoints: new connections go to other endpoints, and
existing connections stay. The drained cluster is not involved and may be down. The drain is stored in the
ConfigMap semaphore-drains of the mirrors' namespace until "semaphorectl undrain", or for the time of --for.`,
		Args: cobra.NoArgs,
	}
	for _, d := range drainable {
		t := fleet.Target{Access: access, Orders: true, Parts: []string{fleet.Broker}}
		var timeout, lasts time.Duration
		var dry show.DryRun
		req := &semaphorev1.DrainRequest{}
		sub := &cobra.Command{
			Use:   d.kind + " " + d.argument,
			Short: d.short,
			Args:  show.OneArg(d.argument),
			RunE: func(cmd *cobra.Command, args []string) error {
				var err error
				if req.Target, err = d.parse(args[0]); err != nil {
					return err
				}
				req.DryRun = dry.On()
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
					fleet.Heading(cmd.OutOrStdout(), access, p)
					next := "nothing was changed: without --dry-run it is drained"
					if !req.GetDryRun() {
						next = "to use it again: " + fleet.Again(access, p, "undrain "+show.TargetName(req.Target))
					}
					return show.PrintLines(cmd.OutOrStdout(), drained(answer, req.GetDryRun())+next+"\n")
				})
			},
		}
		t.Flags(sub)
		show.CompleteArg(sub, d.names(&t))
		f := sub.Flags()
		f.DurationVar(&lasts, "for", 0, "end after this time, such as 2h (default: never)")
		f.StringVar(&req.By, "by", "", "who drains and why, for other operators")
		show.DryRunFlag(sub, &dry)
		show.TimeoutFlag(sub, &timeout, 10*time.Second)
		if d.kind == "node" {
			f.StringSliceVar(&req.Prefixes, "prefix", nil,
				"a subnet of the node's pods; may be repeated (default: those that the broker knows of)")
		}
		cmd.AddCommand(sub)
	}
	return cmd
}

func Undrain(access *fleet.Access) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "undrain",
		Short: "use drained endpoints again",
		Args:  cobra.NoArgs,
	}
	for _, d := range drainable {
		t := fleet.Target{Access: access, Orders: true, Parts: []string{fleet.Broker}}
		var timeout time.Duration
		sub := &cobra.Command{
			Use:   d.kind + " " + d.argument,
			Short: d.short,
			Args:  show.OneArg(d.argument),
			RunE: func(cmd *cobra.Command, args []string) error {
				what, err := d.parse(args[0])
				if err != nil {
					return err
				}
				return t.Brokers(cmd.Context(), timeout, "drains", "a broker", func(ctx context.Context, p *fleet.Part) error {
					if _, err := p.Control().Undrain(ctx, &semaphorev1.UndrainRequest{Target: what}); err != nil {
						return err
					}
					fleet.Heading(cmd.OutOrStdout(), access, p)
					_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is no longer drained\nto see what still is: %s\n",
						show.Printable(show.TargetName(what)), fleet.Again(access, p, "get drains"))
					return err
				})
			},
		}
		t.Flags(sub)
		show.CompleteArg(sub, fleet.CompleteStatus(&t, fleet.DrainedOf(d.kind)))
		show.TimeoutFlag(sub, &timeout, 10*time.Second)
		cmd.AddCommand(sub)
	}
	return cmd
}

func drained(answer *semaphorev1.DrainResponse, dry bool) string {
	d := answer.GetDrain()
	does := "is drained"
	if dry {
		does = "would be drained"
	}
	until := ""
	if d.GetUntil() != nil {
		until = " until " + d.GetUntil().AsTime().Format(time.RFC3339)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s%s: %s of %s not used here\n", show.TargetName(d.GetTarget()), does, until,
		show.Number(d.GetEndpoints(), "ready endpoint", "ready endpoints"), show.Number(d.GetServices(), "service",
			"services"))
	if len(d.GetPrefixes()) > 0 {
		fmt.Fprintf(&text, "its pods are in %s\n", strings.Join(d.GetPrefixes(), ", "))
	}
	for _, warning := range answer.GetWarnings() {
		fmt.Fprintf(&text, "warning: %s\n", warning)
	}
	return text.String()
}
