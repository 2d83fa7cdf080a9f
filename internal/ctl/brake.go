package ctl

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func brakeCommand(access *fleet.Access) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "brake",
		Short: "release what a broker retains of a remote that withdrew most of its objects",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(brakeReleaseCommand(access))
	return cmd
}

func brakeReleaseCommand(access *fleet.Access) *cobra.Command {
	t := fleet.Target{Access: access, Parts: []string{fleet.Broker}}
	var names []string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "release CLUSTER",
		Short: "remove now what CLUSTER has withdrawn",
		Long: `Ends the brake for a remote cluster: the broker removes the mirrors, sets and
peers of the objects that CLUSTER has withdrawn. "semaphorectl status" shows what the brake retains, and since when.

Exit code 0 when something was released, 1 when the brake retains nothing or the broker does not answer.`,
		Args: oneArg("CLUSTER"),
		RunE: func(cmd *cobra.Command, args []string) error {
			kinds, err := kindsOf(names)
			if err != nil {
				return err
			}
			return t.Brokers(cmd.Context(), timeout, "has a brake", "a broker", func(ctx context.Context, p *fleet.Part) error {
				if err := heading(cmd.OutOrStdout(), access, p); err != nil {
					return err
				}
				if err := releaseBrake(ctx, cmd.OutOrStdout(), p.Control(), args[0], kinds); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "to see what is left: %s\n", again(access, p, "status"))
				return err
			})
		},
	}
	t.Flags(cmd)
	completeArg(cmd, ofStatus(&t, braked))
	cmd.Flags().StringSliceVar(&names, "kind", nil,
		"node, service, endpointslice or setmember; may be repeated (default: all)")
	completeFlag(cmd, "kind", oneOf("node", "service", "endpointslice", "setmember"))
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	return cmd
}

func kindsOf(names []string) ([]semaphorev1.Kind, error) {
	var kinds []semaphorev1.Kind
	for _, name := range names {
		kind, ok := semaphorev1.KindOf(name)
		if !ok {
			return nil, fmt.Errorf("--kind %q: use node, service, endpointslice or setmember", name)
		}
		kinds = append(kinds, kind)
	}
	return kinds, nil
}

// releaseBrake releases a brake and prints what the broker released.
func releaseBrake(ctx context.Context, w io.Writer, broker semaphorev1.ControlServiceClient, cluster string,
	kinds []semaphorev1.Kind) error {
	answer, err := broker.ReleaseBrake(ctx, &semaphorev1.ReleaseBrakeRequest{Cluster: cluster, Kinds: kinds})
	if err != nil {
		return err
	}
	released := answer.GetReleased()
	slices.SortFunc(released, func(a, b *semaphorev1.ReleasedKind) int { return int(a.GetKind()) - int(b.GetKind()) })
	var all []string
	for _, r := range released {
		kind := semaphorev1.KindName(r.GetKind())
		all = append(all, number(r.GetObjects(), kind, kind+"s"))
	}
	if len(all) == 0 {
		_, err = fmt.Fprintf(w, "%s: the brake retains nothing\n", cli.Printable(cluster))
		return err
	}
	_, err = fmt.Fprintf(w, "%s: released %s: the broker removes here what it made of them\n", cli.Printable(cluster),
		strings.Join(all, ", "))
	return err
}
