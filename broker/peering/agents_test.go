package peering

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	agentstream "github.com/kube-semaphore/semaphore/agent/stream"
	"github.com/kube-semaphore/semaphore/broker/mesh"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// agent is the other end of a session: agent/stream, and a node that follows what is dirty.
type agent struct {
	state   *agentstream.State
	session *Session
	// node has the lines of what is programmed.
	node map[string]bool
	// touched counts what was programmed; changes and unchanged count what the current stream sent.
	touched, changes, unchanged int
}

func newAgent() *agent { return &agent{state: agentstream.NewState(), node: map[string]bool{}} }

// connect begins a stream.
func (a *agent) connect(t *testing.T, s *State) {
	t.Helper()
	a.state.Begin()
	a.changes, a.unchanged = 0, 0
	h := &semaphorev1.AgentHello{Held: a.state.Held()}
	h.ResumeEpoch, h.ResumeRevision = a.state.Resume()
	a.session = open(t, s, h)
}

// step takes one message; it is nil when there is none.
func (a *agent) step(t *testing.T) *semaphorev1.AttachResponse {
	t.Helper()
	f, err := a.session.Next()
	if status.Code(err) == codes.Aborted {
		a.connect(t, a.session.state) // it fell behind what is remembered
		return a.step(t)
	}
	if err != nil {
		t.Fatal(err)
	}
	if f == nil {
		return nil
	}
	m := testkit.Value(f.Message())(t)
	a.changes += len(m.GetChanges().GetChanges())
	if m.GetUnchanged() != nil {
		a.unchanged++
	}
	d, err := a.state.Receive(proto.Clone(m).(*semaphorev1.AttachResponse))
	if err != nil {
		t.Fatalf("the agent refuses %v: %v", words(m), err)
	}
	for cluster := range d.Networks {
		maps.DeleteFunc(a.node, func(line string, _ bool) bool { return line[:2] == cluster })
		if n := a.state.Network(cluster); n != nil {
			a.node[cluster] = true
			for _, p := range n.Peers {
				a.node[cluster+"/"+p.Key.Node+" "+p.AllowedIps[0]] = true
			}
		}
		a.touched++
	}
	for cluster, nodes := range d.Peers {
		for node := range nodes {
			prefix := cluster + "/" + node + " "
			maps.DeleteFunc(a.node, func(line string, _ bool) bool {
				return len(line) > len(prefix) &&
					line[:len(prefix)] == prefix
			})
			if n := a.state.Network(cluster); n != nil && n.Peers[node] != nil {
				a.node[prefix+n.Peers[node].AllowedIps[0]] = true
			}
			a.touched++
		}
	}
	return m
}

// Any order of changes, broken streams and restarts of the broker ends with all agents holding what the broker has
// last received; no device is ever removed by it; and agents that hold it all receive nothing and touch nothing.
func TestAgentsFollow(t *testing.T) {
	clusters := []string{"c2", "c3"}
	unchanged := 0
	for seed := range uint64(600) {
		r := rand.New(rand.NewPCG(seed, 0))
		truth := map[string]map[string]string{"c2": {}, "c3": {}}
		meshNow := func(cluster string) mesh.Changes {
			var nodes []string
			for _, n := range slices.Sorted(maps.Keys(truth[cluster])) {
				nodes = append(nodes, n+" "+truth[cluster][n])
			}
			return meshOf(cluster, nodes...)
		}
		sizes := Sizes{Tombstones: []int{0, 1, 3}[seed%3]}
		s, known := NewStateOf(sizes), map[string]bool{}
		agents := []*agent{newAgent(), newAgent(), newAgent()}
		all := func(do func(*agent)) {
			for _, a := range agents {
				do(a)
			}
		}
		restart := func() {
			s, known = NewStateOf(sizes), map[string]bool{}
			all(func(a *agent) { a.connect(t, s) })
		}
		all(func(a *agent) { a.connect(t, s) })
		check := func() {
			all(func(a *agent) {
				for _, c := range clusters {
					if known[c] && a.state.Current() && a.state.Network(c) == nil && slices.Contains(a.session.syncedClusters, c) {
						t.Fatalf("seed %d: the device to %s is gone", seed, c)
					}
				}
			})
		}
		for range 80 {
			cluster := clusters[r.IntN(2)]
			switch x := r.IntN(20); {
			case x < 4:
				node := fmt.Sprint("n", r.IntN(4))
				if truth[cluster][node] != "" && r.IntN(2) == 0 {
					delete(truth[cluster], node)
				} else {
					truth[cluster][node] = fmt.Sprint(r.IntN(3))
				}
				if known[cluster] {
					become(s, cluster, meshNow(cluster), nil)
				}
			case x < 6:
				become(s, cluster, meshNow(cluster), nil)
				known[cluster] = true
			case x < 7:
				agents[r.IntN(len(agents))].connect(t, s)
			case x < 8:
				restart()
			default:
				a := agents[r.IntN(len(agents))]
				if m := a.step(t); m.GetUnchanged() != nil {
					unchanged++
				}
			}
			check()
		}
		settle := func() {
			all(func(a *agent) {
				for a.step(t) != nil {
				}
			})
		}
		learn := func() {
			for _, cluster := range clusters {
				become(s, cluster, meshNow(cluster), nil)
				known[cluster] = true
			}
		}
		learn()
		settle()
		var want []string
		for _, cluster := range clusters {
			want = append(want, cluster)
			for node, ips := range truth[cluster] {
				want = append(want, cluster+"/"+node+" "+ips)
			}
		}
		slices.Sort(want)
		all(func(a *agent) {
			if got := slices.Sorted(maps.Keys(a.node)); !slices.Equal(got, want) {
				t.Fatalf("seed %d: an agent has %v, and the broker received %v", seed, got, want)
			}
			a.touched = 0
		})
		// A broker that restarts and learns the same, before or after agents come back.
		early := r.IntN(2) == 0
		restart()
		if early {
			settle()
		}
		learn()
		settle()
		all(func(a *agent) {
			if a.touched > 0 || a.changes > 0 || a.unchanged != 2 {
				t.Fatalf("seed %d: after a restart with nothing changed: %d changes, %d unchanged, %d touched", seed, a.changes,
					a.unchanged, a.touched)
			}
		})
	}
	if unchanged < 100 {
		t.Errorf("only %d times was something unchanged on the way", unchanged)
	}
}

// TestRemovalsOfAnotherRemote: however many peers one remote has and removes while an agent is away, of another remote
// that has not changed the agent receives nothing.
func TestRemovalsOfAnotherRemote(t *testing.T) {
	const peers = 500
	s, a := NewState(), newAgent()
	follow := func() (of map[string]int) {
		of = map[string]int{}
		for {
			m := a.step(t)
			if m == nil {
				return of
			}
			for _, c := range m.GetChanges().GetChanges() {
				of[cmp.Or(c.GetPeer().GetKey().GetCluster(), c.GetDeletePeer().GetCluster(), c.GetDevice().GetCluster())]++
			}
		}
	}
	var nodes []string
	for i := range peers {
		nodes = append(nodes, fmt.Sprintf("n%03d 10.3.0.%d", i, i))
	}
	s.Update("c2", meshOf("c2", "a 1"), nil)
	s.Update("c3", meshOf("c3", nodes...), nil)
	a.connect(t, s)
	follow()
	for i := range tombstones + 100 {
		node, gone := fmt.Sprint("b", i), meshOf("c2")
		gone.Peers[node] = nil
		s.Update("c2", meshOf("c2", node+" 2"), nil)
		s.Update("c2", gone, nil)
	}
	s.Update("c2", meshOf("c2", "last 3"), nil)
	a.connect(t, s)
	sent := follow()
	if sent["c3"] != 0 || sent["c2"] != 3 {
		t.Errorf("of c3 and c2 %d and %d changes are sent; want none, and a device with two peers", sent["c3"], sent["c2"])
	}
	if n := len(a.state.Network("c3").Peers); n != peers || len(a.state.Network("c2").Peers) != 2 {
		t.Errorf("the agent has %d peers of c3", n)
	}
}
