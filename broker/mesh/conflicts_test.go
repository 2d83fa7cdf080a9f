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
	dto "github.com/prometheus/client_model/go"

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

type late struct {
	want        allowed
	problem, of string
}

// TestConflicts: who has a key or an address already keeps it, and of CIDRs the same node in whatever order they came;
// and what the other lost is reported by an Event, in the status and as a metric, until it is settled.
func TestConflicts(t *testing.T) {
	type nodes map[string]*semaphorev1.Node // by CLUSTER/NAME
	for name, test := range map[string]struct {
		nodes   nodes
		local   *semaphorev1.WireGuardEndpoint
		want    allowed
		problem string // what the status, and an Event, say of the loser
		of      string // the cluster that it counts for
		// late is what differs when they come in the other order; nil for nothing.
		late *late
	}{
		"one CIDR of two nodes": {
			nodes: nodes{"c2/a": conflicting(1, "192.0.2.1", "10.2.1.0/24"),
				"c2/b": conflicting(2, "192.0.2.2", "10.2.1.0/24", "10.2.2.0/24")},
			want:    allowed{"c2/a": "10.2.1.0/24", "c2/b": "10.2.2.0/24"},
			problem: "pod CIDR 10.2.1.0/24 of node c2/b overlaps that of c2/a, which keeps it", of: "c2",
			late: &late{allowed{"c2/b": "10.2.1.0/24 10.2.2.0/24"},
				"pod CIDR 10.2.1.0/24 of node c2/a overlaps that of c2/b, which keeps it", "c2"},
		},
		"CIDRs that overlap in part": {
			nodes: nodes{"c2/a": conflicting(1, "192.0.2.1", "10.2.1.64/26"),
				"c2/b": conflicting(2, "192.0.2.2", "10.2.1.0/24", "fd00:2::/64")},
			want:    allowed{"c2/a": "10.2.1.64/26", "c2/b": "fd00:2::/64"},
			problem: "pod CIDR 10.2.1.0/24 of node c2/b overlaps that of c2/a, which keeps it", of: "c2",
			late: &late{allowed{"c2/b": "10.2.1.0/24 fd00:2::/64"},
				"pod CIDR 10.2.1.64/26 of node c2/a overlaps that of c2/b, which keeps it", "c2"},
		},
		"one IPv6 block of two nodes": {
			nodes: nodes{"c2/a": conflicting(1, "192.0.2.1", "fd00:2::40/122"),
				"c2/b": conflicting(2, "192.0.2.2", "fd00:2::/112")},
			want:    allowed{"c2/a": "fd00:2::40/122"},
			problem: "pod CIDR fd00:2::/112 of node c2/b overlaps that of c2/a, which keeps it", of: "c2",
			late: &late{allowed{"c2/b": "fd00:2::/112"},
				"pod CIDR fd00:2::40/122 of node c2/a overlaps that of c2/b, which keeps it", "c2"},
		},
		"one key of two nodes": {
			nodes: nodes{"c2/a": conflicting(1, "192.0.2.1", "10.2.1.0/24"),
				"c2/b": conflicting(1, "192.0.2.2", "10.2.2.0/24")},
			want:    allowed{"c2/a": "10.2.1.0/24"},
			problem: "node c2/b has the public key of c2/a: it does not become a peer until it has its own key", of: "c2",
			late: &late{allowed{"c2/b": "10.2.2.0/24"},
				"node c2/a has the public key of c2/b: it does not become a peer until it has its own key", "c2"},
		},
		"one key of two remotes": { // neither names nor the order of the configuration take what works
			nodes: nodes{"c3/a": conflicting(1, "192.0.2.3", "10.3.1.0/24"),
				"c2/z": conflicting(1, "192.0.2.2", "10.2.2.0/24")},
			want:    allowed{"c2/z": "10.2.2.0/24"},
			problem: "node c3/a has the public key of c2/z: it does not become a peer until it has its own key", of: "c3",
			late: &late{allowed{"c3/a": "10.3.1.0/24"},
				"node c2/z has the public key of c3/a: it does not become a peer until it has its own key", "c2"},
		},
		"the key of a node of the own cluster": {
			nodes: nodes{"c2/a": conflicting(1, "192.0.2.1", "10.2.1.0/24"),
				"c2/b": conflicting(9, "192.0.2.2", "10.2.2.0/24")},
			local: &semaphorev1.WireGuardEndpoint{PublicKey: slices.Repeat([]byte{9}, 32), Address: "198.51.100.1"},
			want:  allowed{"c2/a": "10.2.1.0/24"},
			problem: "node c2/b has the public key of this cluster's node l1: it does not become a " +
				"peer until it has its own key",
			of: "c2",
			late: &late{allowed{"c2/a": "10.2.1.0/24", "c2/b": "10.2.2.0/24"},
				"this cluster's node l1 claims the public key of c2/b, which remains the peer with this key", "c2"},
		},
		"the address of a node of the own cluster": {
			nodes: nodes{"c2/a": conflicting(1, "192.0.2.1", "10.2.1.0/24"),
				"c2/b": conflicting(2, "198.51.100.1", "10.2.2.0/24")},
			local: &semaphorev1.WireGuardEndpoint{PublicKey: slices.Repeat([]byte{9}, 32), Address: "198.51.100.1"},
			want:  allowed{"c2/a": "10.2.1.0/24"},
			problem: "node c2/b publishes the endpoint address 198.51.100.1, which belongs to this cluster's node l1: it does " +
				"not become a peer", of: "c2",
			late: &late{allowed{"c2/a": "10.2.1.0/24", "c2/b": "10.2.2.0/24"},
				"this cluster's node l1 claims the address 198.51.100.1 of c2/b, which remains the peer at this address", "c2"},
		},
	} {
		for _, reversed := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", in the other order: ", reversed), func(t *testing.T) {
				test := test
				if reversed && test.late != nil {
					test.want, test.problem, test.of = test.late.want, test.late.problem, test.late.of
				}
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
				metric := func() map[string]float64 {
					t.Helper()
					families, err := reg.Gather()
					families = slices.DeleteFunc(families,
						func(f *dto.MetricFamily) bool { return f.GetName() != "semaphore_broker_peer_problems" })
					if err != nil || len(families) != 1 {
						t.Fatal(families, err)
					}
					out := map[string]float64{}
					for _, m := range families[0].GetMetric() {
						out[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
					}
					return out
				}
				for _, cluster := range []string{"c2", "c3"} {
					p.Take(replica.Part{Cluster: cluster, Completed: kindNode})
				}
				take := func(who string, n *semaphorev1.Node) {
					cluster, name, _ := strings.Cut(who, "/")
					change := replica.Change{Key: replica.Key{Kind: semaphorev1.Kind_KIND_NODE, Name: name}}
					if n != nil {
						change.New = &semaphorev1.Object{Spec: &semaphorev1.Object_Node{Node: n}}
					}
					p.Take(replica.Part{Cluster: cluster, Changes: []replica.Change{change}})
				}
				local := func() {
					if test.local != nil {
						p.LocalNode("l1", [][]byte{test.local.PublicKey}, []netip.Addr{netip.MustParseAddr(test.local.Address)})
					}
				}
				order := slices.Sorted(maps.Keys(test.nodes))
				if reversed {
					slices.Reverse(order)
				} else {
					local()
				}
				for _, who := range order {
					take(who, test.nodes[who])
				}
				if reversed {
					local()
				}
				if !maps.Equal(peers, test.want) {
					t.Errorf("agents receive %v, not %v", peers, test.want)
				}
				if got := finding.Texts(p.Findings()); !slices.Equal(got, []string{test.problem}) {
					t.Errorf("the status says %q, not %q", got, test.problem)
				}
				if events["PeerRefused: "+test.problem] == 0 {
					t.Errorf("Events are %q", slices.Sorted(maps.Keys(events)))
				}
				if got := metric(); got[test.of] != 1 || got["c2"]+got["c3"] != 1 {
					t.Errorf("the metric says %v", got)
				}
				// The node that keeps it goes, and the other has it.
				for _, who := range order {
					if !strings.Contains(test.problem, "node "+who) {
						take(who, nil)
					}
				}
				p.LocalNode("l1", nil, nil)
				if got := finding.Texts(p.Findings()); len(got) != 0 || metric()[test.of] != 0 {
					t.Errorf("all is settled, and the status says %q, the metric %v", got, metric())
				}
			})
		}
	}
}

// TestPeersWaitForCompleteNodes: agents receive peers of a remote once a snapshot of its nodes was complete, and every
// change after it immediately.
func TestPeersWaitForCompleteNodes(t *testing.T) {
	cfg := testkit.Value(described.Broker([]byte("cluster: c1\nfeatures: [encryption]\nlocalSubnets: [10.1.0.0/16]\n" +
		"remotes: [{name: c2, podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]}]\n")))(t)
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
