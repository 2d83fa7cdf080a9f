package operate

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// rotator is a broker with two nodes, one of which has an agent; if node is set, it is the agent of that node.
type rotator struct {
	semaphorev1.UnimplementedControlServiceServer
	node string
}

func (r rotator) RotateKey(_ context.Context,
	req *semaphorev1.RotateKeyRequest) (*semaphorev1.RotateKeyResponse, error) {
	switch {
	case req.GetCluster() == "c9":
		return nil, grpcstatus.Error(codes.NotFound, `"c9" is no configured remote`)
	case r.node != "" && !req.GetForce():
		return nil, grpcstatus.Error(codes.FailedPrecondition, "not attached to the broker")
	case r.node != "":
		return &semaphorev1.RotateKeyResponse{Nodes: []*semaphorev1.NodeRotation{{Node: r.node, Accepted: true,
			Keys: []*semaphorev1.RotatedKey{{
				Cluster: "c2", Interface: "wireguard.c2", PublicKey: make([]byte, 32),
			}}}}}, nil
	}
	out := &semaphorev1.RotateKeyResponse{}
	for _, n := range []*semaphorev1.NodeRotation{{Node: "n1", Accepted: true},
		{Node: "n2", Problem: "no agent is attached"}} {
		if req.GetAll() || slices.Contains(req.GetNodes(), n.Node) {
			out.Nodes = append(out.Nodes, n)
		}
	}
	if req.Within != nil && req.Within.AsDuration() != time.Minute {
		return nil, grpcstatus.Error(codes.InvalidArgument, "within")
	}
	return out, nil
}

func TestRotateKey(t *testing.T) {
	exporter := ctltest.Serve(t, debug.NewRecorder("exporter", "c1", ""), ctltest.Well)
	broker, agent := ctltest.ServeControl(t, "broker", rotator{}), ctltest.ServeControl(t, "agent", rotator{node: "n1"})
	const follow = "to see what became of it: semaphorectl trace --history node/n1\n"
	for _, c := range []struct {
		args string
		out  string
		code int
		err  string
	}{
		{"--node n1 --socket " + exporter + " --socket " + broker, "n1: order received\n" + follow, 0, ""},
		{"--all --within 1m --socket " + broker, "n1: order received\nn2: NOT received: no agent is attached\n" + follow, 2,
			"1 of 2 nodes did not receive the order"},
		{"--node n1,n2 --socket " + broker, "n1: order received\nn2: NOT received: no agent is attached\n" + follow, 2,
			"1 of 2"},
		{"--all --remote c9 --socket " + broker, "", 1, `"c9" is no configured remote`},
		{"--socket " + agent, "", 1, "not attached"},
		{"--force --socket " + agent,
			"n1: wireguard.c2 has the new public key AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n" + follow, 0, ""},
		{"--all --socket " + exporter, "", 1, "none of the parts asked is a broker or an agent"},
		{"--all --node n1 --socket " + broker, "", 1, "none of the others can be"},
		{"--all --within -1s --socket " + broker, "", 1, "--within -1s"},
		{"--all --address 127.0.0.1:1 --part exporter", "", 1, "ask a broker"},
	} {
		out, code, err := ctltest.Run(t, append([]string{"rotate-key"}, strings.Fields(c.args)...)...)
		if out != c.out || code != c.code || (err == nil) != (c.err == "") || err != nil &&
			!strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %q, exit code %d, %v", c.args, out, code, err)
		}
	}
}
