package mesh

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/described"
)

// allowed are the allowed IPs of each peer, as agents receive them.
type allowed map[string]string

func (a allowed) Update(cluster string, c Changes, _ map[string]time.Time) {
	for node, p := range c.Peers {
		if a[cluster+"/"+node] = strings.Join(p.GetAllowedIps(), " "); p == nil {
			delete(a, cluster+"/"+node)
		}
	}
}

func (a allowed) Remove(cluster string) {
	maps.DeleteFunc(a, func(node, _ string) bool { return strings.HasPrefix(node, cluster+"/") })
}

func conflicting(key byte, address string, cidrs ...string) *semaphorev1.Node {
	return &semaphorev1.Node{PodCidrs: cidrs,
		Wireguard: &semaphorev1.WireGuardEndpoint{PublicKey: slices.Repeat([]byte{key}, 32), Address: address + ":51820"}}
}

// TestConflicts: what a node lost to another is reported by an Event, in the status and as a metric, until it is
// settled. TestR08APrefixBelongsToOneNode and those beside it have who wins.
func TestConflicts(t *testing.T) {
	for name, test := range map[string]struct {
		first, second string // CLUSTER/NAME
		nodes         [2]*semaphorev1.Node
		want          allowed
		problem       string
		of            string // the cluster that it counts for
	}{
		"one IPv6 block of two nodes": {
			"c2/a", "c2/b",
			[2]*semaphorev1.Node{conflicting(1, "192.0.2.1", "fd00:2::40/122"), conflicting(2, "192.0.2.2", "fd00:2::/112")},
			allowed{"c2/a": "fd00:2::40/122"},
			"pod CIDR fd00:2::/112 of node c2/b overlaps that of c2/a, which keeps it", "c2",
		},
		"one key of two remotes": { // neither names nor the order of the configuration take what works
			"c3/z", "c2/a",
			[2]*semaphorev1.Node{conflicting(1, "192.0.2.3", "10.3.1.0/24"), conflicting(1, "192.0.2.2", "10.2.2.0/24")},
			allowed{"c3/z": "10.3.1.0/24"},
			"node c2/a has the public key of c3/z: it does not become a peer until it has its own key", "c2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testkit.Value(described.Broker([]byte(`
cluster: c1
features: [encryption]
localSubnets: [10.1.0.0/16]
remotes: [{name: c2, podSubnets: [10.2.0.0/16, "fd00:2::/48"], nodeSubnets: [172.16.0.0/12]},
  {name: c3, podSubnets: [10.3.0.0/16], nodeSubnets: [172.16.0.0/12], wireguard: {listenPort: 51821}}]
`)))(t)
			peers, events := allowed{}, map[string]int{}
			p := NewEngine(cfg, peers, func(_, _ string, reason finding.Code, note string) bool {
				events[string(reason)+": "+note]++
				return true
			})
			reg := prometheus.NewRegistry()
			reg.MustRegister(p)
			metric := func(cluster string) float64 {
				n, _ := testkit.Metric(t, reg, "semaphore_broker_peer_problems", cluster)
				return n
			}
			take := func(who string, n *semaphorev1.Node) {
				cluster, name, _ := strings.Cut(who, "/")
				change := replica.Change{Key: replica.Key{Kind: semaphorev1.Kind_KIND_NODE, Name: name}}
				if n != nil {
					change.New = &semaphorev1.Object{Spec: &semaphorev1.Object_Node{Node: n}}
				}
				p.Take(replica.Part{Cluster: cluster, Completed: kindNode, Changes: []replica.Change{change}})
			}
			take(test.first, test.nodes[0])
			take(test.second, test.nodes[1])
			if !maps.Equal(peers, test.want) {
				t.Errorf("agents receive %v, not %v", peers, test.want)
			}
			if got := finding.Texts(p.Findings()); !slices.Equal(got, []string{test.problem}) {
				t.Errorf("the status says %q, not %q", got, test.problem)
			}
			if events["PeerRefused: "+test.problem] == 0 {
				t.Errorf("Events are %q", slices.Sorted(maps.Keys(events)))
			}
			if metric(test.of) != 1 || metric("c2")+metric("c3") != 1 {
				t.Errorf("the metric says %v of c2 and %v of c3", metric("c2"), metric("c3"))
			}
			take(test.first, nil)
			if got := finding.Texts(p.Findings()); len(got) != 0 || metric(test.of) != 0 {
				t.Errorf("all is settled, and the status says %q, the metric %v", got, metric(test.of))
			}
			loser := test.nodes[1].GetWireguard()
			p.LocalNode("l1", [][]byte{loser.GetPublicKey()},
				[]netip.Addr{netip.MustParseAddrPort(loser.GetAddress()).Addr()})
			own := "this cluster's node l1 claims the public key of " + test.second + ", which remains the peer with this key"
			claims, _ := testkit.Metric(t, reg, "semaphore_broker_node_claims", "l1")
			if got := finding.Texts(p.Findings()); !slices.Contains(got, own) || claims != 2 {
				t.Errorf("of %v claims the status says %q, not %q", claims, got, own)
			}
		})
	}
}

const encrypting = "cluster: c1\nfeatures: [encryption]\nlocalSubnets: [10.1.0.0/16]\n" +
	"remotes: [{name: c2, podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]}]\n"

// TestPeersWaitForCompleteNodes: agents receive peers of a remote once a snapshot of its nodes was complete, and every
// change after it immediately.
func TestPeersWaitForCompleteNodes(t *testing.T) {
	cfg := testkit.Value(described.Broker([]byte(encrypting)))(t)
	peers := allowed{}
	e := NewEngine(cfg, peers, func(_, _ string, _ finding.Code, _ string) bool { return true })
	for _, step := range []struct {
		node      string
		completed semaphorev1.Kind
		want      int
	}{{"a", 0, 0}, {"b", 0, 0}, {"c", kindNode, 3}, {"d", 0, 4}} {
		number := step.node[0] - 'a' + 1
		node := conflicting(number, fmt.Sprint("192.0.2.", number), fmt.Sprintf("10.2.%d.0/24", number))
		e.Take(replica.Part{Cluster: "c2", Completed: step.completed, Changes: []replica.Change{{
			Key: replica.Key{Kind: kindNode, Name: step.node},
			New: &semaphorev1.Object{Spec: &semaphorev1.Object_Node{Node: node}}}}})
		if len(peers) != step.want {
			t.Errorf("after node %s: agents receive %v; want %d peers", step.node, peers, step.want)
		}
	}
}

// TestReleasedNodesAreRemovedFromAgents: an earlier broker had nodes of c2, whose exporter no longer exports any.
// Agents have them until the operator releases them, and none after that.
func TestReleasedNodesAreRemovedFromAgents(t *testing.T) {
	cfg := testkit.Value(described.Broker([]byte(encrypting)))(t)
	peers := allowed{"c2/a": "10.2.1.0/24"}
	e := NewEngine(cfg, peers, func(_, _ string, _ finding.Code, _ string) bool { return true })
	key := replica.Key{Kind: kindNode, Name: "a"}
	node := &semaphorev1.Object{Spec: &semaphorev1.Object_Node{Node: conflicting(1, "192.0.2.1", "10.2.1.0/24")}}
	e.Take(replica.Part{Cluster: "c2", Changes: []replica.Change{{Key: key, New: node}}})
	e.Take(replica.Part{Cluster: "c2", Hello: &semaphorev1.Hello{}})
	if len(peers) != 1 {
		t.Errorf("before the release agents receive %v", peers)
	}
	e.Take(replica.Part{Cluster: "c2", Completed: kindNode, Changes: []replica.Change{{Key: key, Old: node}}})
	if len(peers) > 0 {
		t.Errorf("after the release agents keep %v", peers)
	}
}
