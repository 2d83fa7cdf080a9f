package ctl

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
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

// serveControl starts a part with a ControlService on a socket.
func serveControl(t *testing.T, part string, c semaphorev1.ControlServiceServer) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), part+".sock")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- debug.ServeSocket(ctx, socket, debug.NewServer(debug.NewRecorder(part, "c1", ""), well, debug.Answers{}),
			func(r grpc.ServiceRegistrar) { semaphorev1.RegisterControlServiceServer(r, c) })
	}()
	t.Cleanup(func() {
		cancel()
		must(t, <-done)
	})
	listens(t, socket)
	return socket
}

func TestRotateKey(t *testing.T) {
	exporter := serve(t, debug.NewRecorder("exporter", "c1", ""), well)
	broker, agent := serveControl(t, "broker", rotator{}), serveControl(t, "agent", rotator{node: "n1"})
	const follow = "to see what became of it: semaphorectl history node/n1\n"
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
		out, code, err := run(t, append([]string{"rotate-key"}, strings.Fields(c.args)...)...)
		if out != c.out || code != c.code || (err == nil) != (c.err == "") || err != nil &&
			!strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %q, exit code %d, %v", c.args, out, code, err)
		}
	}
}
