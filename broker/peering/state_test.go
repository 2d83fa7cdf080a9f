package peering

import (
	"fmt"
	"maps"
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

// TestState: an update sends only what it changes, and a CIDR is free before another node has it.
func TestState(t *testing.T) {
	s := NewState()
	agent := open(t, s, nil)
	equal(t, "nothing known", said(t, agent), "attached n1 resumed=false; synced 0 []")
	become(s, "c2", meshOf("c2", "n1 a", "n2 b"), map[string]time.Time{"n1": time.Unix(5, 0)})
	equal(t, "c2", said(t, agent), "1:c2 2:c2/n1=a 3:c2/n2=b; synced 3 [c2]")
	all, _ := s.journal.Snapshot()
	if m := message(all[1]); !m.GetObservedAt().AsTime().Equal(time.Unix(5, 0)) || message(all[0]).GetObservedAt() != nil {
		t.Errorf("observed at %v", m.GetObservedAt())
	}
	become(s, "c2", meshOf("c2", "n1 a", "n3 b"), nil)
	equal(t, "from a node that leaves", said(t, agent), "4:-c2/n2 5:c2/n3=b")
	s.Update("c2", mesh.Changes{Device: meshOf("c2").Device, Peers: meshOf("c2", "n1 b", "n3 c").Peers}, nil)
	equal(t, "between two that stay, whatever their names", said(t, agent), "6:c2/n1=b 7:c2/n3=c")
	n0 := meshOf("c2", "n0 b", "n1 d")
	n0.Peers["n9"] = nil // which nobody knows
	s.Update("c2", n0, nil)
	equal(t, "to a new one", said(t, agent), "8:c2/n1=d 9:c2/n0=b")
	s.Update("c1", meshOf("c1"), nil)
	equal(t, "another cluster", said(t, agent), "10:c1; synced 10 [c1 c2]")
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
