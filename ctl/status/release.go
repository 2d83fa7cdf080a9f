package status

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func Release(access *fleet.Access) *cobra.Command {
	t := fleet.Target{Access: access, Orders: true, Parts: []string{fleet.Broker}}
	var names []string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "release CLUSTER",
		Short: "have the broker remove now what CLUSTER has withdrawn, and the brake retains",
		Long: `Ends the brake for a remote cluster: the broker removes the mirrors, sets and
peers of the objects that CLUSTER has withdrawn. "semaphorectl status" shows what the brake retains, and since when.

Exit code 0 when something was released, 1 when the brake retains nothing or the broker does not answer.`,
		Args: show.OneArg("CLUSTER"),
		RunE: func(cmd *cobra.Command, args []string) error {
			kinds, err := kindsOf(names)
			if err != nil {
				return err
			}
			return t.Brokers(cmd.Context(), timeout, "has a brake", "a broker", func(ctx context.Context,
				p *fleet.Part) error {
				fleet.Heading(cmd.OutOrStdout(), access, p)
				if err := releaseBrake(ctx, cmd.OutOrStdout(), p.Control(), args[0], kinds); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "to see what is left: %s\n", fleet.Again(access, p, "status"))
				return err
			})
		},
	}
	t.Flags(cmd)
	show.CompleteArg(cmd, fleet.CompleteStatus(&t, fleet.BrakedOf))
	cmd.Flags().StringSliceVar(&names, "kind", nil,
		"node, service, endpointslice or setmember; may be repeated (default: all)")
	show.CompleteFlag(cmd, "kind", show.OneOf("node", "service", "endpointslice", "setmember"))
	show.TimeoutFlag(cmd, &timeout, 5*time.Second)
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
		all = append(all, show.Number(r.GetObjects(), kind, kind+"s"))
	}
	if len(all) == 0 {
		_, err = fmt.Fprintf(w, "%s: the brake retains nothing\n", show.Printable(cluster))
		return err
	}
	_, err = fmt.Fprintf(w, "%s: released %s: the broker removes here what it made of them\n", show.Printable(cluster),
		strings.Join(all, ", "))
	return err
}
