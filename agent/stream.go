package agent

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentstatus "github.com/kube-semaphore/semaphore/agent/status"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func (a *agent) Begin() []*semaphorev1.AttachRequest {
	a.node.StreamBegins()
	a.keys.StreamBegins()
	return a.session.Begin(agentstatus.Report(a.board.Get(), a.session.View(time.Now()), a.peers.Report))
}

// Receive implements stream.Handler: it passes a message to its owners. Messages on which later ones rely come first:
// at an end mark the lists of the stream are complete before the desired state is.
func (a *agent) Receive(_ context.Context, m *semaphorev1.AttachResponse) error {
	if m.GetSynced() != nil {
		a.keys.Synced()
		a.node.Synced()
	}
	changed, err := a.session.Receive(m)
	if err != nil {
		return err
	}
	if m.GetSynced() != nil {
		a.node.Spoken()
	}
	switch m := m.GetMessage().(type) {
	case *semaphorev1.AttachResponse_NodeNetwork:
		if a.node.SetNetwork(m.NodeNetwork.GetPodPrefixes(), m.NodeNetwork.GetTunnelAddresses(),
			m.NodeNetwork.GetCalls()) {
			a.queue.heal(a.session.Clusters())
		}
	case *semaphorev1.AttachResponse_Guard:
		a.node.SetRemotes(m.Guard)
	case *semaphorev1.AttachResponse_Undelivered:
		a.keys.SetUndelivered(m.Undelivered)
	case *semaphorev1.AttachResponse_WatchClosely:
		a.peers.WatchClosely(m.WatchClosely.GetFor().AsDuration())
	case *semaphorev1.AttachResponse_ProbePeers:
		a.peers.ProbePeers(m.ProbePeers.GetClusters(), m.ProbePeers.GetFor().AsDuration())
	case *semaphorev1.AttachResponse_RotateKey:
		a.keys.Order(m.RotateKey, a.session.Clusters())
	}
	if m.GetSynced() != nil || m.GetGuard() != nil {
		a.judgeRetained()
	}
	if changed {
		a.cache.Changed()
	}
	a.queue.poke()
	return nil
}

// judgeRetained checks the guard of remotes that are guarded although the subnets file does not name them: the broker
// has just sent its desired state. A remote with a device is guarded with it.
func (a *agent) judgeRetained() {
	for _, cluster := range a.node.Retained() {
		if a.session.Device(cluster) != nil {
			a.queue.set(cluster)
		}
	}
}

func (a *agent) Ended(err error) { a.session.Ended(err) }

// operator serves operators on the agent's debug socket.
type operator struct {
	semaphorev1.UnimplementedControlServiceServer
	*agent
}

func (o operator) RotateKey(ctx context.Context,
	req *semaphorev1.RotateKeyRequest) (*semaphorev1.RotateKeyResponse, error) {
	node := o.session.View(time.Now()).Node
	others := slices.DeleteFunc(slices.Clone(req.GetNodes()), func(name string) bool { return name == node })
	if len(others) > 0 {
		return nil, status.Errorf(codes.InvalidArgument,
			"nodes: this is the agent of node %q, not of %s: ask the broker", node, strings.Join(others, ", "))
	}
	rotation, done := &semaphorev1.NodeRotation{Node: node, Accepted: true}, make(chan error, 1)
	o.queue.order(func(ctx context.Context, listens bool) {
		var err error
		rotation.Keys, err = o.replaceKeys(ctx, req, listens)
		done <- err
	})
	select {
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	case err := <-done:
		if err != nil {
			return nil, err
		}
		return &semaphorev1.RotateKeyResponse{Nodes: []*semaphorev1.NodeRotation{rotation}}, nil
	}
}
