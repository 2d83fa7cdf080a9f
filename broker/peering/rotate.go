package peering

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// rotateInterval is the time for each node when an operator rotates many keys without stating a duration: each new key
// causes a handshake with every remote node that has traffic for it.
const rotateInterval = 50 * time.Millisecond

const maxRotations = 64

// rotate queues an order to rotate the agent's key, which is sent after everything else. It returns why the agent
// cannot receive it, empty if it can.
func (s *Session) rotate(m *semaphorev1.RotateKey) (why string) {
	switch {
	case s.hello == nil:
		return "its agent has not sent Hello yet"
	case len(s.rotations) >= maxRotations:
		return "its agent does not read its stream"
	}
	s.rotations = append(s.rotations, m)
	return ""
}

func (s *Session) nextRotation() *Frame {
	if len(s.rotations) == 0 {
		return nil
	}
	m := s.rotations[0]
	s.rotations = s.rotations[1:]
	return &Frame{message: &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_RotateKey{RotateKey: m}}}
}

// RotateKeys orders the agents of nodes to rotate their keys for a remote, or for every remote if cluster is empty,
// spread over a duration; nil for rotateInterval a node. With force they rotate even if the remote would not receive
// the key. It returns the result for each node.
func (s *Server) RotateKeys(cluster string, nodes []string, within *durationpb.Duration,
	force bool) []*semaphorev1.NodeRotation {
	attached := s.byNode()
	nodes = slices.Compact(slices.Sorted(slices.Values(nodes)))
	if within == nil && len(nodes) > 1 {
		within = durationpb.New(time.Duration(len(nodes)) * rotateInterval)
	}
	m := &semaphorev1.RotateKey{Cluster: cluster, Within: within, Force: force}
	out := make([]*semaphorev1.NodeRotation, 0, len(nodes))
	for _, name := range nodes {
		r := &semaphorev1.NodeRotation{Node: name}
		out = append(out, r)
		a := attached[name]
		if a == nil {
			r.Problem = "no agent is attached"
			if _, ok := s.options.Nodes.UID(name); !ok {
				r.Problem = "the node does not exist"
			}
			continue
		}
		a.mu.Lock()
		r.Problem = a.session.rotate(m)
		a.mu.Unlock()
		if r.Accepted = r.Problem == ""; r.Accepted {
			s.options.Recorder.Record(debug.Event{Object: "node " + name, Action: "rotate-key",
				Detail: "by an operator's order"})
			a.wake()
		}
	}
	return out
}
