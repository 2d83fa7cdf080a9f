package broker

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/broker/federation"
	"github.com/kube-semaphore/semaphore/broker/nodenet"
	"github.com/kube-semaphore/semaphore/broker/peering"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// control is the operator's word to the broker that does the work: a standby holds nothing that could be let go.
type control struct {
	semaphorev1.UnimplementedControlServiceServer
	working atomic.Pointer[working]
	log     *slog.Logger
}

// working is what the operator's word goes to.
type working struct {
	cluster    string
	federation *federation.Server
	engines    engines
	// peering, nodes and networks are nil when encryption is off.
	peering  *peering.Server
	nodes    *apply.Nodes
	networks *nodenet.Networks
	// drains is nil when services are off.
	drains  *apply.Drains
	remotes []config.Remote
}

func (c *control) register(r grpc.ServiceRegistrar) { semaphorev1.RegisterControlServiceServer(r, c) }

// ReleaseBrake implements semaphorev1.ControlServiceServer.
func (c *control) ReleaseBrake(_ context.Context, req *semaphorev1.ReleaseBrakeRequest) (*semaphorev1.ReleaseBrakeResponse, error) {
	w := c.working.Load()
	if w == nil {
		return nil, status.Error(codes.FailedPrecondition, "this broker is a standby and holds nothing: ask the one that leads")
	}
	for _, kind := range req.GetKinds() {
		if !slices.Contains(replica.Kinds, kind) {
			return nil, status.Errorf(codes.InvalidArgument, "kinds: %d is none that this broker knows", kind)
		}
	}
	held, err := w.federation.Release(req.GetCluster(), req.GetKinds()...)
	if err != nil {
		return nil, err
	}
	// What an earlier broker wrote is held apart from that, as objects of this cluster.
	written := w.engines.Release(req.GetCluster(), req.GetKinds()...)
	objects := map[semaphorev1.Kind]uint64{}
	for _, h := range held {
		objects[h.Kind] += uint64(h.Objects)
	}
	for kind, n := range written {
		objects[kind] += uint64(n)
	}
	if len(objects) == 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "nothing of cluster %s is held back", req.GetCluster())
	}
	out := &semaphorev1.ReleaseBrakeResponse{}
	for _, kind := range replica.Kinds {
		if n, ok := objects[kind]; ok {
			out.Released = append(out.Released, &semaphorev1.ReleasedKind{Kind: kind, Objects: n})
		}
	}
	c.log.Warn("the operator has released the brake", "cluster", req.GetCluster(), "kinds", req.GetKinds())
	return out, nil
}

// RotateKey implements semaphorev1.ControlServiceServer.
func (c *control) RotateKey(_ context.Context, req *semaphorev1.RotateKeyRequest) (*semaphorev1.RotateKeyResponse, error) {
	w := c.working.Load()
	if w == nil {
		return nil, status.Error(codes.FailedPrecondition, "this broker is a standby and has no agents: ask the one that leads")
	}
	switch {
	case w.peering == nil:
		return nil, status.Error(codes.FailedPrecondition, "this broker has no agents: features lacks encryption")
	case req.GetAll() == (len(req.GetNodes()) > 0):
		return nil, status.Error(codes.InvalidArgument, "nodes, all: use one of them")
	case req.GetWithin().AsDuration() < 0:
		return nil, status.Errorf(codes.InvalidArgument, "within: %s; use 0 or more", req.GetWithin().AsDuration())
	case req.GetCluster() != "" && !slices.ContainsFunc(w.remotes, func(r config.Remote) bool { return r.Name == req.GetCluster() }):
		return nil, status.Errorf(codes.NotFound, "%q is no configured remote", req.GetCluster())
	}
	for _, r := range w.remotes {
		if why := w.peering.Undelivered(r.Name); why != "" && !req.GetForce() && (req.GetCluster() == "" || req.GetCluster() == r.Name) {
			return nil, status.Errorf(codes.FailedPrecondition, "the nodes of %s would not learn of a new key, and take no packets from a node that has one: %s; "+
				"wait, name another remote, or use force and lose that traffic until they do", r.Name, why)
		}
	}
	nodes := req.GetNodes()
	if req.GetAll() {
		nodes = w.nodes.Names()
	}
	out := &semaphorev1.RotateKeyResponse{Nodes: w.peering.RotateKeys(req.GetCluster(), nodes, req.GetWithin(), req.GetForce())}
	told := 0
	for _, n := range out.Nodes {
		if n.Told {
			told++
		}
	}
	c.log.Info("an operator wants new keys", "cluster", req.GetCluster(), "told", told, "not told", len(out.Nodes)-told)
	return out, nil
}
