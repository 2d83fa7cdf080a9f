package ctl

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func brakeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "brake",
		Short: "let go what a broker holds back of a remote that withdrew most of it",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(brakeReleaseCommand())
	return cmd
}

func brakeReleaseCommand() *cobra.Command {
	var t fleet.Target
	var names []string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "release CLUSTER",
		Short: "what CLUSTER has withdrawn is gone for good: remove it now",
		Long: `Tells the broker that what a remote cluster has withdrawn is gone for good, and that its mirrors, sets and
peers are to be removed now. "semaphorectl status" shows what is held back, and since when.

Exit code 0 when something was let go, 1 when nothing was held back or the broker cannot be asked.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			kinds, err := kindsOf(names)
			if err != nil {
				return err
			}
			return t.Brokers(cmd.Context(), timeout, "has a brake", "a broker", func(ctx context.Context, p *fleet.Part) error {
				return releaseBrake(ctx, cmd.OutOrStdout(), p.Control(), args[0], kinds)
			})
		},
	}
	t.Flags(cmd)
	cmd.Flags().StringSliceVar(&names, "kind", nil, "node, service, endpointslice or setmember; may be repeated (default: all)")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	return cmd
}

func kindsOf(names []string) ([]semaphorev1.Kind, error) {
	known := map[string]semaphorev1.Kind{}
	for n := range semaphorev1.Kind_name {
		if kind := semaphorev1.Kind(n); kind != semaphorev1.Kind_KIND_UNSPECIFIED {
			known[semaphorev1.KindName(kind)] = kind
		}
	}
	var kinds []semaphorev1.Kind
	for _, name := range names {
		kind, ok := known[name]
		if !ok {
			return nil, fmt.Errorf("--kind %q: use node, service, endpointslice or setmember", name)
		}
		kinds = append(kinds, kind)
	}
	return kinds, nil
}

// releaseBrake tells what a broker has let go.
func releaseBrake(ctx context.Context, w io.Writer, broker semaphorev1.ControlServiceClient, cluster string, kinds []semaphorev1.Kind) error {
	answer, err := broker.ReleaseBrake(ctx, &semaphorev1.ReleaseBrakeRequest{Cluster: cluster, Kinds: kinds})
	if err != nil {
		return err
	}
	released := answer.GetReleased()
	slices.SortFunc(released, func(a, b *semaphorev1.ReleasedKind) int { return int(a.GetKind()) - int(b.GetKind()) })
	for _, r := range released {
		if _, err := fmt.Fprintf(w, "%s: %d %s let go\n", cluster, r.GetObjects(), semaphorev1.KindName(r.GetKind())); err != nil {
			return err
		}
	}
	return nil
}
