package peering

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/broker/mesh"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
)

// meshOf is all that leads to a cluster; nodes are "NAME CIDR".
func meshOf(cluster string, nodes ...string) mesh.Changes {
	m := mesh.Changes{Device: &semaphorev1.Device{Cluster: cluster, ListenPort: 51820},
		Peers: map[string]*semaphorev1.Peer{}}
	for _, n := range nodes {
		name, cidr, _ := strings.Cut(n, " ")
		m.Peers[name] = &semaphorev1.Peer{Key: &semaphorev1.PeerKey{Cluster: cluster, Node: name}, AllowedIps: []string{cidr}}
	}
	return m
}

// become updates a state with what differs from all that leads to a cluster.
func become(s *State, cluster string, m mesh.Changes, observedAt map[string]time.Time) {
	c := mesh.Changes{Device: m.Device, Peers: maps.Clone(m.Peers)}
	all, _ := s.journal.Snapshot()
	for _, e := range all {
		if k := e.Key; k.cluster == cluster && k.node != "" && m.Peers[k.node] == nil {
			c.Peers[k.node] = nil
		}
	}
	s.Update(cluster, c, observedAt)
}

func TestState(t *testing.T) {
	s := NewState()
	position := uint64(0)
	// since is what agents receive of what happened since last time.
	since := func() string {
		changes, next, ok := s.journal.Since(position, 1000)
		if !ok {
			t.Fatal("a snapshot is needed")
		}
		position = next
		var out []string
		for _, e := range changes {
			m := message(e)
			if m.GetRevision() != e.Revision {
				t.Errorf("revision %d of entry %d", m.GetRevision(), e.Revision)
			}
			switch c := m.GetChange().(type) {
			case *semaphorev1.PeeringChange_Device:
				out = append(out, "device "+c.Device.Cluster)
			case *semaphorev1.PeeringChange_Peer:
				out = append(out, fmt.Sprint("peer ", c.Peer.Key.Cluster, "/", c.Peer.Key.Node, " ", c.Peer.AllowedIps))
			case *semaphorev1.PeeringChange_DeletePeer:
				out = append(out, "no peer "+c.DeletePeer.Cluster+"/"+c.DeletePeer.Node)
			}
		}
		return strings.Join(out, ", ")
	}
	more := s.changed
	if len(s.complete) != 0 {
		t.Errorf("known %v", s.complete)
	}
	become(s, "c2", meshOf("c2", "n1 a", "n2 b"), map[string]time.Time{"n1": time.Unix(5, 0)})
	if got := since(); got != "device c2, peer c2/n1 [a], peer c2/n2 [b]" {
		t.Error(got)
	}
	select {
	case <-more:
	default:
		t.Error("the wait for c2, which is known now, was not ended")
	}
	all, _ := s.journal.Snapshot()
	if m := message(all[1]); !m.GetObservedAt().AsTime().Equal(time.Unix(5, 0)) || message(all[0]).GetObservedAt() != nil {
		t.Errorf("observed at %v", m.GetObservedAt())
	}
	become(s, "c2", meshOf("c2", "n1 a", "n2 b"), nil)
	if got := since(); got != "" {
		t.Errorf("nothing changed: %s", got)
	}
	// A CIDR passes from a node that leaves: first it is free.
	become(s, "c2", meshOf("c2", "n1 a", "n3 b"), nil)
	if got := since(); got != "no peer c2/n2, peer c2/n3 [b]" {
		t.Error(got)
	}
	// And so it is when it passes between two that stay, whatever their names.
	s.Update("c2", mesh.Changes{Device: meshOf("c2").Device, Peers: meshOf("c2", "n1 b", "n3 c").Peers}, nil)
	if got := since(); got != "peer c2/n1 [b], peer c2/n3 [c]" {
		t.Error(got)
	}
	n0 := meshOf("c2", "n0 b", "n1 d")
	n0.Peers["n9"] = nil // which nobody knows
	s.Update("c2", n0, nil)
	if got := since(); got != "peer c2/n1 [d], peer c2/n0 [b]" {
		t.Error(got)
	}
	s.Update("c1", meshOf("c1"), nil)
	if got := since(); got != "device c1" {
		t.Error(got)
	}
	if !slices.Equal(s.complete, []string{"c1", "c2"}) {
		t.Errorf("known %v", s.complete)
	}
}

// BenchmarkOneNode is a node that gets another CIDR, among as many others.
func BenchmarkOneNode(b *testing.B) {
	for _, nodes := range []int{1000, 5000, 10_000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			s := NewState()
			var all []string
			for i := range nodes {
				all = append(all, fmt.Sprintf("n%05d %d", i, i))
			}
			s.Update("c2", meshOf("c2", all...), nil)
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				i++
				s.Update("c2", meshOf("c2", fmt.Sprintf("n00500 x%d", i)), nil)
			}
			figure.Of(b, "allocs/op").AtMost(30) // however many nodes there are
		})
	}
}

// A removed peer is remembered by its name: its keys, addresses and encoding, of 10,000 peers, would be most of what an
// idle broker holds.
func TestARemovedPeerIsItsName(t *testing.T) {
	s := NewState()
	become(s, "c2", meshOf("c2", "n1 b"), nil)
	become(s, "c2", meshOf("c2"), nil)
	e, there := s.journal.Last(key{"c2", "n1"})
	if !there || !e.Deleted || e.Value.change != nil {
		t.Errorf("there %t: %+v", there, e)
	}
}
