package broker

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/broker/peering"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/broker/services"
	"github.com/kube-semaphore/semaphore/broker/stored"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// noLoop is a loop in a cluster without objects.
type noLoop struct{ writes.Loop }

func (noLoop) Mark(string, string, time.Time)         {}
func (noLoop) WakeOwned(string)                       {}
func (noLoop) WakeAll()                               {}
func (noLoop) Synced() bool                           { return true }
func (noLoop) Owned(string) (names []string, ok bool) { return nil, true }

// TestNodesAreKnownOnce: the endpoints of a remote whose nodes all lack a key are not used, in whatever order the
// engines handle the nodes.
func TestNodesAreKnownOnce(t *testing.T) {
	cfg, state := brokerConfig(t, newClusters(t, "c1", "c2", "c3")), peering.NewState()
	e := newEngines(cfg, state, func(_, _ string, _ finding.Code, _ string) bool { return true }, time.Now)
	e.services.Bind(services.Loops{Services: noLoop{}, Slices: noLoop{}})
	e.services.DesiredServices().Synced()
	e.services.DesiredSlices().Synced()
	r := newReaching(cfg, e, state, func() []uint64 { return nil })
	var changes []replica.Change
	for _, o := range []*semaphorev1.Object{players.Node("n1", 0, "10.2.1.0/24"), players.Service("shop", "web", 80),
		players.Slice("shop", "web-1", "web", "10.2.1.5")} {
		changes = append(changes, replica.Change{Key: replica.KeyOf(o.GetKey()), New: o})
	}
	e.tunnels.Take(replica.Part{Cluster: "c2", Changes: changes[:1], Completed: semaphorev1.Kind_KIND_NODE})
	digests, _ := state.Digests()
	r.look(digests, time.Now())
	e.services.Take(replica.Part{Cluster: "c2", Changes: changes})
	if got := e.services.Unreached()["c2"].Nodes; !maps.Equal(got, map[string]int{"n1": 1}) {
		t.Errorf("endpoints without a tunnel: %v", got)
	}
}

// used returns the ready endpoints of the mirror and of the global Service of c2's web.
func (w *world) used(t *testing.T) string {
	out := map[string]bool{}
	for _, service := range []string{"c2-shop-73736d-web", "gl-shop-73736d-web"} {
		for _, s := range w.slicesOf(t, service) {
			for _, one := range s.Endpoints {
				if ptr.Deref(one.Conditions.Ready, true) {
					out[service[:2]+" "+one.Addresses[0]] = true
				}
			}
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(out)), ", ")
}

// TestPodsWithoutATunnel: the endpoints of a mirror and of a global Service that lie on a node without an agent, on one
// whose endpoint is refused, and on one that the agents have yet to set, are not used, and the status names the nodes
// and the causes. They are used once a tunnel leads there. A restart of the broker writes nothing.
func TestPodsWithoutATunnel(t *testing.T) {
	w := newWorld(t)
	stop := w.start(w.cfg)
	agent := w.attach("", 0)
	outside := players.Node("n3", 23, "10.2.3.0/24")
	outside.GetNode().Wireguard.Address = "8.8.8.8:51820"
	shared := players.Service("shop", "web", 80)
	shared.GetService().Global = true
	e := w.exporter("c2")
	e.SendAll("c2", "e1", players.Node("n1", 21, "10.2.1.0/24"), players.Node("n2", 0, "10.2.2.0/24"), outside, shared,
		players.Slice("shop", "web-1", "web", "10.2.1.5", "10.2.2.5", "10.2.3.5"))
	becomes := func(what, want string) {
		t.Helper()
		eventually(t, what, func() (bool, string) { used := w.used(t); return used == want, used })
	}
	becomes("only the node with a tunnel", "c2 10.2.1.5, gl 10.2.1.5")
	finds := func(what string, texts ...string) {
		t.Helper()
		eventually(t, what, func() (bool, string) {
			var found []string
			for _, f := range w.status(w.cfg).GetFindings() {
				if f.GetCode() == "NoTunnel" {
					found = append(found, f.GetFirst()...)
				}
			}
			text := strings.Join(found, "\n")
			for _, part := range texts {
				if !strings.Contains(text, part) {
					return false, text
				}
			}
			return (len(found) > 0) == (len(texts) > 0), text
		})
	}
	finds("both nodes are named", "2 ready endpoints of cluster c2 are not used", "node n2: it has published no key",
		"node n3: it is refused: ", "EndpointNotAllowed")

	// A restart writes nothing, although n2 gets an agent meanwhile: no agent here has its peer.
	agent.until("the peer", `
device c2: 51822 [10.2.0.0/16]
peer c2/n1: 172.18.2.21:51820 [10.2.1.0/24]`, "c2")
	var before map[string]string
	eventually(t, "all is written, and the peers are stored for the next broker", func() (bool, string) {
		has := false
		for shard := range stored.Shards {
			m, err := w.admin.CoreV1().ConfigMaps("semaphore").Get(t.Context(), stored.Name(shard), metav1.GetOptions{})
			has = has || err == nil && len(m.BinaryData["c2"]) > 0
		}
		before = w.written()
		return has && len(before) == 6, fmt.Sprint(has, before)
	})
	e.Cancel()
	agent.cancel()
	stop()
	stop = w.start(w.cfg)
	defer stop()
	agent = w.attach("", 0)
	e = w.exporter("c2")
	e.SendAll("c2", "e2", players.Node("n1", 21, "10.2.1.0/24"), players.Node("n2", 22, "10.2.2.0/24"), outside, shared,
		players.Slice("shop", "web-1", "web", "10.2.1.5", "10.2.2.5", "10.2.3.5"))
	finds("the status after a restart", "2 ready endpoints of cluster c2 are not used",
		"node n2: its peer is not set on every node here yet")
	if now := w.written(); !maps.Equal(now, before) {
		t.Errorf("after a restart:\n%v, was\n%v", now, before)
	}

	// The endpoint of n3 is corrected: both are used once the agents here have set the peers.
	e.Send(players.Upserts(101, players.Node("n3", 23, "10.2.3.0/24")))
	e.Acked(101)
	agent.until("three peers", `
device c2: 51822 [10.2.0.0/16]
peer c2/n1: 172.18.2.21:51820 [10.2.1.0/24]
peer c2/n2: 172.18.2.22:51820 [10.2.2.0/24]
peer c2/n3: 172.18.2.23:51820 [10.2.3.0/24]`, "c2")
	finds("the peers are not everywhere", "node n2: its peer is not set on every node here yet", "node n3: its peer")
	becomes("the peers are published, and not set", "c2 10.2.1.5, gl 10.2.1.5")
	agent.applied()
	becomes("the peers are set", "c2 10.2.1.5, c2 10.2.2.5, c2 10.2.3.5, gl 10.2.1.5, gl 10.2.2.5, gl 10.2.3.5")
	finds("nothing is left")

	// A node loses its key: what it had in use is not reached any more.
	e.Send(players.Upserts(102, players.Node("n2", 0, "10.2.2.0/24")))
	e.Acked(102)
	becomes("a node without a key", "c2 10.2.1.5, c2 10.2.3.5, gl 10.2.1.5, gl 10.2.3.5")
	e.Send(players.Deletion(103, &semaphorev1.Object{Key: outside.Key}))
	e.Acked(103)
	becomes("a node is gone", "c2 10.2.1.5, gl 10.2.1.5")
	finds("the addresses are of no node", "node n2: it has published no key", "addresses in no node's subnets")
}

// TestTunnelsOfAnAddedRemote: the endpoints of a remote that is added while the broker works are not used, not even for
// a moment, until the agents have set its peers.
func TestTunnelsOfAnAddedRemote(t *testing.T) {
	r := worldOfObjects(t)
	r.start(r.cfg)
	agent := r.attach("", 0)
	written := testkit.Value(r.admin.DiscoveryV1().EndpointSlices("semaphore").Watch(t.Context(), metav1.ListOptions{
		LabelSelector: naming.LabelSourceCluster + "=c2"}))(t)
	defer written.Stop()
	r.create("c2", "{podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]}")
	r.shows("c2", "Accepted, not Connected (NeverConnected), Healthy unknown, port 7775")
	shared := players.Service("shop", "web", 80)
	shared.GetService().Global = true
	e, kinds := r.exporter("c2"), slices.Clone(players.AllKinds)
	slices.Reverse(kinds) // the nodes come last
	e.Greet(players.Hello("c2", "e1", 9, kinds...))
	all := players.Snapshots(kinds, 9, players.Node("n1", 21, "10.2.1.0/24"), shared,
		players.Slice("shop", "web-1", "web", "10.2.1.5"))
	const ofNodes = 3 // messages: begin, change, end
	e.Send(all[:len(all)-ofNodes]...)
	eventually(t, "the slices are there", func() (bool, string) {
		now := slices.Concat(r.slicesOf(t, "c2-shop-73736d-web"), r.slicesOf(t, "gl-shop-73736d-web"))
		return len(now) == 2, fmt.Sprint(now)
	})
	e.Send(all[len(all)-ofNodes:]...)
	agent.until("the peer", "device c2: 7775 [10.2.0.0/16]\npeer c2/n1: 172.18.2.21:51820 [10.2.1.0/24]", "c2")
	eventually(t, "the peer is not everywhere", func() (bool, string) {
		found := fmt.Sprint(r.status(r.cfg).GetFindings())
		return strings.Contains(found, "node n1: its peer is not set on every node here yet"), found
	})
	agent.applied()
	eventually(t, "the peer is set", func() (bool, string) {
		used := r.used(t)
		return used == "c2 10.2.1.5, gl 10.2.1.5", used
	})
	ready := map[string][]bool{}
	for len(ready) < 2 || slices.ContainsFunc(slices.Collect(maps.Values(ready)), func(states []bool) bool {
		return !states[len(states)-1]
	}) {
		s := (<-written.ResultChan()).Object.(*discoveryv1.EndpointSlice)
		for _, one := range s.Endpoints {
			ready[s.Name] = append(ready[s.Name], ptr.Deref(one.Conditions.Ready, true))
		}
	}
	for name, states := range ready {
		if states[0] {
			t.Errorf("the endpoint in slice %s was ready before an agent had the peer: %v", name, states)
		}
	}
}
