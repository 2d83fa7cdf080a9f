package status

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func RotateKey(access *fleet.Access) *cobra.Command {
	t := fleet.Target{Access: access, Orders: true, Parts: []string{fleet.Broker, fleet.Agent}}
	var timeout, within time.Duration
	req := &semaphorev1.RotateKeyRequest{}
	cmd := &cobra.Command{
		Use:   "rotate-key (--node NODE… | --all)",
		Short: "have nodes make new WireGuard keys",
		Long: `Makes nodes of this cluster replace their WireGuard keys. The broker sends the order to their agents and
answers with the nodes that received it; each new key then reaches the peers as every change does, and traffic
continues. Through an agent's own socket, that one node replaces its keys, and the answer comes afterwards;
the agent refuses while it is not attached to its broker, because its peers would not receive them.

Exit code 0 when all nodes received the order, 2 when some did not, 1 when no part answered.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if within < 0 {
				return fmt.Errorf("--within %s: use 0s or more", within)
			}
			if cmd.Flags().Changed("within") {
				req.Within = durationpb.New(within)
			}
			var nodes []*semaphorev1.NodeRotation
			var ordered *fleet.Part
			err := t.Brokers(cmd.Context(), timeout, "takes such an order, and an agent by --agent or through its socket",
				"a broker or an agent", func(ctx context.Context, p *fleet.Part) error {
					answer, err := p.Control().RotateKey(ctx, req)
					if slices.ContainsFunc(answer.GetNodes(), (*semaphorev1.NodeRotation).GetAccepted) {
						ordered = cmp.Or(ordered, p)
					}
					nodes = append(nodes, answer.GetNodes()...)
					return err
				})
			return errors.Join(printRotations(cmd.OutOrStdout(), nodes, func(node string) string {
				return fleet.Again(access, ordered, "trace --history node/"+node)
			}), err)
		},
	}
	t.Flags(cmd)
	f := cmd.Flags()
	f.StringSliceVar(&req.Nodes, "node", nil, "a node of this cluster; may be repeated")
	f.BoolVar(&req.All, "all", false, "all nodes of this cluster")
	f.StringVar(&req.Cluster, "remote", "", "only the keys for this remote cluster (default: for each)")
	f.DurationVar(&within, "within", 0, "spread the nodes over this time (default: 50ms for each of them)")
	f.BoolVar(&req.Force, "force", false, "rotate even if a remote cannot learn the new key now; interrupts "+
		"traffic to it until it does")
	show.TimeoutFlag(cmd, &timeout, 10*time.Second)
	show.CompleteFlag(cmd, "node", fleet.CompleteStatus(&t, fleet.NodesOf))
	show.CompleteFlag(cmd, "remote", fleet.CompleteStatus(&t, fleet.LinkedOf))
	cmd.MarkFlagsMutuallyExclusive("node", "all")
	return cmd
}

// printRotations prints which nodes received the order, and the command that shows the result. It fails if some did
// not.
func printRotations(w io.Writer, nodes []*semaphorev1.NodeRotation, result func(node string) string) error {
	ordered, not, first := 0, 0, ""
	for _, n := range nodes {
		line := "order received"
		switch {
		case !n.GetAccepted():
			not++
			line = "NOT received: " + show.Printable(n.GetProblem())
		case len(n.GetKeys()) > 0:
			var keys []string
			for _, k := range n.GetKeys() {
				keys = append(keys, fmt.Sprintf("%s has the new public key %s", show.Printable(k.GetInterface()),
					base64.StdEncoding.EncodeToString(k.GetPublicKey())))
			}
			line = strings.Join(keys, ", ")
		}
		if n.GetAccepted() {
			ordered++
			first = cmp.Or(first, n.GetNode())
		}
		fmt.Fprintf(w, "%s: %s\n", show.Printable(n.GetNode()), line)
	}
	if ordered > 0 {
		fmt.Fprintf(w, "to see the result: %s\n", result(first))
	}
	if not > 0 {
		return program.ExitError{Code: show.ExitWrong, Err: fmt.Errorf("%d of %d nodes did not receive the order",
			not, ordered+not)}
	}
	return nil
}
