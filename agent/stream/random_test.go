package stream

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/agent/plan"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// broker is a model of a broker: a log of states, of which the newest of each object is sent, and the set of complete
// clusters. It sends nothing of a cluster that is not complete.
type broker struct {
	r        *rand.Rand
	epoch    int
	revision uint64
	// oldest is the last revision whose deletions are no longer remembered.
	oldest   uint64
	newest   map[string]*semaphorev1.PeeringChange // by object
	complete map[string]bool
	truth    map[string]map[string]string // cluster → node → allowed IPs; outlives restarts
}

var clusters = []string{"c2", "c3", "c4"}

func object(c *semaphorev1.PeeringChange) string {
	switch c := c.GetChange().(type) {
	case *semaphorev1.PeeringChange_Device:
		return c.Device.GetCluster()
	case *semaphorev1.PeeringChange_DeleteDevice:
		return c.DeleteDevice
	case *semaphorev1.PeeringChange_Peer:
		return c.Peer.GetKey().GetCluster() + "/" + c.Peer.GetKey().GetNode()
	case *semaphorev1.PeeringChange_DeletePeer:
		return c.DeletePeer.GetCluster() + "/" + c.DeletePeer.GetNode()
	}
	panic("no such change")
}

func deletes(c *semaphorev1.PeeringChange) bool {
	return c.GetDeleteDevice() != "" || c.GetDeletePeer() != nil
}

func (b *broker) put(c *semaphorev1.PeeringChange) {
	b.revision++
	c.Revision = b.revision
	b.newest[object(c)] = c
}

func (b *broker) restart() {
	b.epoch++
	b.revision, b.oldest = 0, 0
	b.newest, b.complete = map[string]*semaphorev1.PeeringChange{}, map[string]bool{}
}

// know makes one cluster complete at the broker.
func (b *broker) know(cluster string) {
	if b.complete[cluster] {
		return
	}
	b.put(device(0, cluster, 51820))
	for node, allowed := range b.truth[cluster] {
		b.put(peer(0, cluster, node, allowed))
	}
	b.complete[cluster] = true
}

// happen makes a random change in a remote cluster.
func (b *broker) happen() {
	cluster := clusters[b.r.IntN(len(clusters))]
	node := fmt.Sprintf("n%d", b.r.IntN(4))
	nodes := b.truth[cluster]
	if nodes == nil {
		nodes = map[string]string{}
		b.truth[cluster] = nodes
	}
	if _, there := nodes[node]; there && b.r.IntN(2) == 0 {
		delete(nodes, node)
		if b.complete[cluster] {
			b.put(noPeer(0, cluster, node))
		}
		return
	}
	nodes[node] = fmt.Sprintf("10.%d.0.0/16", b.r.IntN(5))
	if b.complete[cluster] {
		b.put(peer(0, cluster, node, nodes[node]))
	}
}

// since returns the newest states after a revision, in order.
func (b *broker) since(revision uint64, withDeletions bool) []*semaphorev1.PeeringChange {
	var out []*semaphorev1.PeeringChange
	for _, c := range b.newest {
		if c.GetRevision() > revision && (withDeletions || !deletes(c)) {
			out = append(out, proto.Clone(c).(*semaphorev1.PeeringChange))
		}
	}
	slices.SortFunc(out, func(x, y *semaphorev1.PeeringChange) int { return int(x.GetRevision()) - int(y.GetRevision()) })
	return out
}

func (b *broker) wanted() []string {
	var lines []string
	for _, cluster := range clusters {
		lines = append(lines, cluster)
		for node, allowed := range b.truth[cluster] {
			lines = append(lines, cluster+"/"+node+" "+allowed)
		}
	}
	slices.Sort(lines)
	return lines
}

// stream is one stream from the broker, with its messages in order.
type stream struct {
	b         *broker
	position  uint64
	begun     bool
	announced map[string]bool
}

// next returns the next message, or nil if there is none. Batches are small, so that streams break within a state.
func (s *stream) next(resumeEpoch string, resumeRevision uint64) *semaphorev1.AttachResponse {
	b := s.b
	epoch := fmt.Sprint(b.epoch)
	if !s.begun {
		s.begun = true
		resumed := resumeEpoch == epoch && resumeRevision >= b.oldest && resumeRevision <= b.revision
		if resumed {
			s.position = resumeRevision
		}
		return attached(epoch, resumed)
	}
	if rest := b.since(s.position, true); len(rest) > 0 {
		rest = rest[:min(len(rest), 1+b.r.IntN(3))]
		s.position = rest[len(rest)-1].GetRevision()
		return changes(rest...)
	}
	s.position = b.revision
	if s.announced == nil || !maps.Equal(s.announced, b.complete) {
		s.announced = maps.Clone(b.complete)
		return synced(b.revision, slices.Sorted(maps.Keys(s.announced))...)
	}
	return nil
}

// node is a node that follows only what is dirty.
type node map[string]map[string]string

func (n node) follow(s *State, d Dirty) {
	for cluster := range d.Networks {
		if s.Network(cluster) == nil {
			delete(n, cluster)
			continue
		}
		n.look(s, cluster)
	}
	for cluster, names := range d.Peers {
		network := s.Network(cluster)
		if network != nil && network.Restored {
			n.look(s, cluster)
			continue
		}
		for name := range names {
			if network == nil || network.Peers[name] == nil {
				delete(n[cluster], name)
			} else {
				n[cluster][name] = network.Peers[name].GetAllowedIps()[0]
			}
		}
	}
}

// look sets a device to the desired state; for restored state it only adds.
func (n node) look(s *State, cluster string) {
	network := s.Network(cluster)
	if n[cluster] == nil || !network.Restored {
		n[cluster] = map[string]string{}
	}
	for name, p := range network.Peers {
		if _, there := n[cluster][name]; !there {
			n[cluster][name] = p.GetAllowedIps()[0]
		}
	}
}

func (n node) lines() []string {
	var lines []string
	for cluster, peers := range n {
		lines = append(lines, cluster)
		for name, allowed := range peers {
			lines = append(lines, cluster+"/"+name+" "+allowed)
		}
	}
	slices.Sort(lines)
	return lines
}

// TestRandomStreams: any order of changes, broken streams, restarts of broker and agent, and reboots of the node, with
// the state that an earlier agent stored, ends in the broker's desired state, on the node too. None of them removes a
// device that exists, and a reconnect without a change touches nothing.
func TestRandomStreams(t *testing.T) {
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 0))
		b := &broker{r: r, truth: map[string]map[string]string{}}
		b.restart()
		s, n := NewState(), node{}
		var st *stream
		connect := func() { s.Begin(); st = &stream{b: b} }
		// step receives one message; it returns false if there is none.
		step := func() (Dirty, bool) {
			m := st.next(s.Resume())
			if m == nil {
				return Dirty{}, false
			}
			had := slices.Sorted(maps.Keys(n))
			d, err := s.Receive(m)
			if err != nil {
				t.Fatalf("seed %d: %v: %v", seed, m, err)
			}
			n.follow(s, d)
			for _, cluster := range had {
				if n[cluster] == nil {
					t.Fatalf("seed %d: the device to %s went with %v", seed, cluster, m)
				}
			}
			return d, true
		}
		connect()
		var kept map[string]*plan.Desired
		keep := func() {
			if now, whole := s.Snapshot(); whole {
				kept = now
			}
		}
		for range 60 {
			switch x := r.IntN(24); {
			case x == 20:
				keep()
			case x == 21: // the agent restarts
				if r.IntN(2) == 0 {
					keep() // it was asked to stop
				}
				s = NewState()
				n.follow(s, s.Restore(kept))
				connect()
			case x == 22: // the node boots
				s, n = NewState(), node{}
				n.follow(s, s.Restore(kept))
				connect()
			case x < 4:
				b.happen()
			case x < 6:
				b.know(clusters[r.IntN(len(clusters))])
			case x < 7:
				connect()
			case x < 8:
				b.restart()
				connect()
			case x < 9:
				b.oldest = b.revision // deletions up to now are forgotten
				for o, c := range b.newest {
					if deletes(c) {
						delete(b.newest, o)
					}
				}
				connect()
			default:
				step()
			}
		}
		for _, cluster := range clusters {
			b.know(cluster)
		}
		for more := true; more; {
			_, more = step()
		}
		if diff := cmp.Diff(b.wanted(), held(s)); diff != "" {
			t.Fatalf("seed %d: held differs from what the broker wants (-want +got):\n%s", seed, diff)
		}
		if diff := cmp.Diff(b.wanted(), n.lines()); diff != "" {
			t.Fatalf("seed %d: the node that follows what is dirty differs (-want +got):\n%s", seed, diff)
		}
		for _, restart := range []bool{false, true} {
			connect()
			unknown := 0
			if restart {
				b.restart()
				unknown = len(clusters)
			}
			for {
				d, more := step()
				if unknown > 0 && (!more || r.IntN(3) == 0) {
					unknown--
					b.know(clusters[unknown])
					more = true
				}
				if !more {
					break
				}
				if !d.Empty() {
					t.Fatalf("seed %d: a reconnect (broker restarted: %v) with nothing changed makes dirty: %v", seed,
						restart, dirty(d))
				}
			}
		}
	}
}
