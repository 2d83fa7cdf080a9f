// Package operator answers the calls of operators and semaphorectl that change the broker's work: it releases brakes,
// requests new keys, drains endpoints, and lists policy sets. It serves operators a page with the live state, and
// removes the broker's objects from a cluster.
//
// Its only state is the current broker, and the content of the page. Inputs are calls; outputs are calls of the parts
// concerned.
package operator

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/broker/federation"
	"github.com/kube-semaphore/semaphore/broker/nodes"
	"github.com/kube-semaphore/semaphore/broker/peering"
	"github.com/kube-semaphore/semaphore/broker/services"
	"github.com/kube-semaphore/semaphore/broker/stored"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Server serves operators. A standby has nothing to release.
type Server struct {
	semaphorev1.UnimplementedControlServiceServer
	leading atomic.Pointer[Broker]
	log     *slog.Logger
}

// Broker has the parts of the current broker that calls reach.
type Broker struct {
	// Config returns the configuration with the remotes in effect.
	Config     func() *config.Broker
	Federation *federation.Server
	// Release removes the objects that the first snapshot of a remote withdrew and the brake retains, of some kinds or of
	// all, and returns their number.
	Release func(cluster string, kinds ...semaphorev1.Kind) map[semaphorev1.Kind]int
	// Services and Drains are nil when services are off.
	Services *services.Engine
	Drains   *stored.Drains
	// Peering, Nodes and Networks are nil when encryption is off.
	Peering  *peering.Server
	Nodes    *nodes.Nodes
	Networks *nodes.Networks
	// Exempt returns why no agent is expected on a node; empty if one is.
	Exempt func(node string) string
}

func New(log *slog.Logger) *Server { return &Server{log: log} }

// Lead makes calls reach a broker that leads from now on.
func (c *Server) Lead(b *Broker) { c.leading.Store(b) }

func (c *Server) Register(r grpc.ServiceRegistrar) { semaphorev1.RegisterControlServiceServer(r, c) }

// ReleaseBrake implements semaphorev1.ControlServiceServer. It fails with FailedPrecondition on a standby, and
// InvalidArgument for an unknown kind.
func (c *Server) ReleaseBrake(_ context.Context,
	req *semaphorev1.ReleaseBrakeRequest) (*semaphorev1.ReleaseBrakeResponse, error) {
	w := c.leading.Load()
	if w == nil {
		return nil, status.Error(codes.FailedPrecondition,
			"this broker is a standby and retains nothing: ask the leader")
	}
	for _, kind := range req.GetKinds() {
		if !slices.Contains(semaphorev1.Kinds, kind) {
			return nil, status.Errorf(codes.InvalidArgument, "kinds: this broker does not know %d", kind)
		}
	}
	held, err := w.Federation.Release(req.GetCluster(), req.GetKinds()...)
	if err != nil {
		return nil, err
	}
	// An earlier broker's objects are retained separately, as objects of this cluster.
	written := w.Release(req.GetCluster(), req.GetKinds()...)
	objects := map[semaphorev1.Kind]uint64{}
	for _, h := range held {
		objects[h.Kind] += uint64(h.Objects)
	}
	for kind, n := range written {
		objects[kind] += uint64(n)
	}
	if len(objects) == 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "the brake retains nothing of cluster %s", req.GetCluster())
	}
	out := &semaphorev1.ReleaseBrakeResponse{}
	for _, kind := range semaphorev1.Kinds {
		if n, ok := objects[kind]; ok {
			out.Released = append(out.Released, &semaphorev1.ReleasedKind{Kind: kind, Objects: n})
		}
	}
	c.log.Info("an operator released the brake", "cluster", req.GetCluster(), "kinds", req.GetKinds())
	return out, nil
}

// withKeys leaves out the nodes that have no agent and need none.
func (b *Broker) withKeys(all []*semaphorev1.NodeRotation) []*semaphorev1.NodeRotation {
	return slices.DeleteFunc(all, func(n *semaphorev1.NodeRotation) bool {
		return !n.GetAccepted() && b.Exempt(n.GetNode()) != ""
	})
}

// RotateKey implements semaphorev1.ControlServiceServer. It fails with FailedPrecondition on a standby and without
// encryption, InvalidArgument for a request that makes no sense, and NotFound for an unknown remote.
func (c *Server) RotateKey(_ context.Context,
	req *semaphorev1.RotateKeyRequest) (*semaphorev1.RotateKeyResponse, error) {
	w := c.leading.Load()
	if w == nil {
		return nil, status.Error(codes.FailedPrecondition,
			"this broker is a standby and has no agents: ask the leader")
	}
	switch {
	case w.Peering == nil:
		return nil, status.Error(codes.FailedPrecondition, "this broker has no agents: features lacks encryption")
	case req.GetAll() == (len(req.GetNodes()) > 0):
		return nil, status.Error(codes.InvalidArgument, "nodes, all: use one of them")
	case req.GetWithin().AsDuration() < 0:
		return nil, status.Errorf(codes.InvalidArgument, "within: %s; use 0 or more", req.GetWithin().AsDuration())
	}
	cfg := w.Config()
	if _, ok := cfg.Remote(req.GetCluster()); !ok && req.GetCluster() != "" {
		return nil, status.Errorf(codes.NotFound, "%q is no configured remote", req.GetCluster())
	}
	for _, r := range cfg.Remotes {
		if why := w.Peering.Undelivered(r.Name); why != "" && !req.GetForce() &&
			(req.GetCluster() == "" || req.GetCluster() == r.Name) {
			return nil, status.Errorf(codes.FailedPrecondition,
				"the nodes of %s would not receive a new key, and would drop packets from a node that has one: %s; "+
					"wait, name another remote, or use force and lose that traffic until they receive it", r.Name, why)
		}
	}
	nodes := req.GetNodes()
	if req.GetAll() {
		nodes = w.Nodes.Names()
	}
	out := &semaphorev1.RotateKeyResponse{Nodes: w.Peering.RotateKeys(req.GetCluster(), nodes, req.GetWithin(),
		req.GetForce())}
	if req.GetAll() {
		out.Nodes = w.withKeys(out.Nodes)
	}
	sent := 0
	for _, n := range out.Nodes {
		if n.Accepted {
			sent++
		}
	}
	c.log.Info("an operator ordered new keys", "cluster", req.GetCluster(), "sent", sent, "not sent",
		len(out.Nodes)-sent)
	return out, nil
}
