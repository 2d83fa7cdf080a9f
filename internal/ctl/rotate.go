package ctl

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/internal/ctl/cli"
	"github.com/kube-semaphore/semaphore/internal/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func rotateKeyCommand() *cobra.Command {
	var t fleet.Target
	var timeout, within time.Duration
	req := &semaphorev1.RotateKeyRequest{}
	cmd := &cobra.Command{
		Use:   "rotate-key (--node NODE… | --all)",
		Short: "have nodes make new WireGuard keys",
		Long: `Has nodes of this cluster make new WireGuard keys in place of theirs. The broker tells their agents and answers who was told; each
new key then goes to the peers as every change does, and traffic goes on. Asked through an agent's own socket, that one
node makes new keys, and the answer comes when it has; it refuses while it is not attached to its broker, as
its peers would not learn of them.

Exit code 0 when all were told, 2 when some were not, 1 when nobody could be asked.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if t.Address != "" && t.Part != "broker" {
				return fmt.Errorf("--part %q: ask a broker, or an agent through its socket", t.Part)
			}
			if within < 0 {
				return fmt.Errorf("--within %s: use 0s or more", within)
			}
			if cmd.Flags().Changed("within") {
				req.Within = durationpb.New(within)
			}
			parts, err := t.Dial(cmd.Context())
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return rotateKey(ctx, cmd.OutOrStdout(), parts, req)
		},
	}
	t.Flags(cmd)
	f := cmd.Flags()
	f.StringSliceVar(&req.Nodes, "node", nil, "a node of this cluster; may be repeated")
	f.BoolVar(&req.All, "all", false, "all nodes of this cluster")
	f.StringVar(&req.Cluster, "remote", "", "only the keys for this remote cluster (default: for each)")
	f.DurationVar(&within, "within", 0, "spread the nodes over this time (default: 50ms for each of them)")
	f.BoolVar(&req.Force, "force", false, "also where a remote would not learn of the new key, as while it does not receive what this cluster publishes, or the agent asked is not attached: traffic then ends until it does")
	f.DurationVar(&timeout, "timeout", 10*time.Second, "how long to wait for the answer")
	cmd.MarkFlagsMutuallyExclusive("node", "all")
	return cmd
}

// rotateKey asks those of the parts that are brokers or agents.
func rotateKey(ctx context.Context, w io.Writer, parts []*fleet.Part, req *semaphorev1.RotateKeyRequest) error {
	var nodes []*semaphorev1.NodeRotation
	asked, failed := fleet.Each(ctx, parts, func(ctx context.Context, p *fleet.Part) error {
		answer, err := p.Control().RotateKey(ctx, req)
		nodes = append(nodes, answer.GetNodes()...)
		return err
	})
	told, not := 0, 0
	for _, n := range nodes {
		line := "told"
		switch {
		case !n.GetTold():
			not++
			line = "NOT told: " + cli.Printable(n.GetProblem())
		case len(n.GetKeys()) > 0:
			var keys []string
			for _, k := range n.GetKeys() {
				keys = append(keys, fmt.Sprintf("%s has the new public key %s", cli.Printable(k.GetInterface()), base64.StdEncoding.EncodeToString(k.GetPublicKey())))
			}
			line = strings.Join(keys, ", ")
			told++
		default:
			told++
		}
		if _, err := fmt.Fprintf(w, "%s: %s\n", cli.Printable(n.GetNode()), line); err != nil {
			return err
		}
	}
	switch {
	case asked == 0:
		return errors.New("none of the parts asked is a broker or an agent: run this where the broker that leads runs, or give --address")
	case failed != nil:
		return failed
	case not > 0:
		return program.ExitError{Code: cli.ExitWrong, Err: fmt.Errorf("%d of %d nodes were not told", not, told+not)}
	}
	return nil
}
