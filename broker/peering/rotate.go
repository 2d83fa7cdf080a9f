package peering

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// rotateEvery is the time that a node gets for itself when many are to make new keys and nothing else is asked for:
// each new key is a handshake with every remote node that has traffic for it.
const rotateEvery = 50 * time.Millisecond

// maxRotations is how many words of an operator may wait for one agent.
const maxRotations = 64

// Rotate has the agent told to make a new key, once it has been told all else. It returns whether the agent will
// hear of it; else why not.
func (s *Session) Rotate(m *semaphorev1.RotateKey) (why string) {
	switch {
	case s.hello == nil:
		return "its agent has not said hello yet"
	case !slices.Contains(s.hello.GetFeatures(), semaphorev1.FeatureRotateKey):
		return "its agent is of a version that cannot do it"
	case len(s.rotations) >= maxRotations:
		return "its agent reads nothing"
	}
	s.rotations = append(s.rotations, m)
	return ""
}

// rotation is the next word of an operator; nil for none.
func (s *Session) rotation() *Frame {
	if len(s.rotations) == 0 {
		return nil
	}
	m := s.rotations[0]
	s.rotations = s.rotations[1:]
	return &Frame{message: &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_RotateKey{RotateKey: m}}}
}

// RotateKeys has the agents of nodes told to make new keys for a remote, or for every one where cluster is empty, over a
// time; nil for so much a node. With force they do so also where the remote would not learn of the key. It returns who was told.
func (s *Server) RotateKeys(cluster string, nodes []string, within *durationpb.Duration, force bool) []*semaphorev1.NodeRotation {
	s.mu.Lock()
	attached := make(map[string]*attachment, len(s.attached))
	for _, a := range s.attached {
		attached[a.agent.Node] = a
	}
	s.mu.Unlock()
	wanted := map[string]bool{}
	for _, name := range nodes {
		wanted[name] = true
	}
	if within == nil && len(wanted) > 1 {
		within = durationpb.New(time.Duration(len(wanted)) * rotateEvery)
	}
	m := &semaphorev1.RotateKey{Cluster: cluster, Within: within, Force: force}
	out := make([]*semaphorev1.NodeRotation, 0, len(wanted))
	for name := range wanted {
		r := &semaphorev1.NodeRotation{Node: name}
		out = append(out, r)
		a := attached[name]
		if a == nil {
			r.Problem = "no agent is attached"
			if _, ok := s.options.Nodes.UID(name); !ok {
				r.Problem = "there is no such node"
			}
			continue
		}
		a.mu.Lock()
		r.Problem = a.session.Rotate(m)
		a.mu.Unlock()
		if r.Told = r.Problem == ""; r.Told {
			s.options.Recorder.Record(debug.Event{Object: "node " + name, Action: "rotate-key", Detail: "by an operator's word"})
			a.wake()
		}
	}
	slices.SortFunc(out, func(a, b *semaphorev1.NodeRotation) int { return cmp.Compare(a.Node, b.Node) })
	return out
}
