package mesh

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/broker/problem"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func key(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }

// claimed is how many names are claimed.
func claimed[C comparable](c *problem.Claims[C]) int { return len(slices.Collect(c.Names)) }

// WireGuard gives a prefix to the peer that was set last. Here it stays with the node that had it first, whatever their
// names, and the other is named.
func TestR08APrefixBelongsToOneNode(t *testing.T) {
	nodes := map[string]*semaphorev1.Node{"a": node(1, "10.2.1.0/24"), "b": node(2, "10.2.1.128/25", "10.2.2.0/24")}
	first := "a key 1 allowed 10.2.1.0/24; b key 2 allowed 10.2.2.0/24"
	for _, c := range []struct {
		order                 []string
		peers, lost, by, left string
	}{
		{[]string{"a", "b"}, first, "10.2.1.128/25 of node c2/b", "c2/a", "b key 2 allowed 10.2.1.128/25,10.2.2.0/24"},
		{[]string{"b", "a"}, "b key 2 allowed 10.2.1.128/25,10.2.2.0/24", "10.2.1.0/24 of node c2/a", "c2/b",
			"a key 1 allowed 10.2.1.0/24"},
		// Of those that come at one time it is the one whose name comes first.
		{[]string{"b+a"}, first, "10.2.1.128/25 of node c2/b", "c2/a", "b key 2 allowed 10.2.1.128/25,10.2.2.0/24"},
	} {
		p := New(remotes())
		for _, step := range c.order {
			for _, name := range strings.Split(step, "+") {
				p.SetNode("c2", name, nodes[name])
			}
			p.Update()
		}
		m := meshOf(p, "c2")
		if got := show(m); got != c.peers {
			t.Errorf("%v: %s", c.order, got)
		}
		if len(m.Problems) != 1 || !strings.Contains(m.Problems[0], "pod CIDR "+c.lost+" overlaps that of "+c.by) {
			t.Errorf("%v: problems %q", c.order, m.Problems)
		}
		// A node that no longer claims it does not have it.
		p.SetNode("c2", strings.TrimPrefix(c.by, "c2/"), nil)
		p.Update()
		if got := show(meshOf(p, "c2")); got != c.left {
			t.Errorf("%v: %s", c.order, got)
		}
	}
}

// Of two nodes with one key, of one remote or of two, the first is a peer; the rest is unharmed.
func TestR10AKeyBelongsToOneNode(t *testing.T) {
	p := New(remotes())
	p.SetNode("c2", "a", node(1, "10.2.1.0/24"))
	p.SetNode("c2", "b", node(1, "10.2.2.0/24"))
	p.SetNode("c3", "a", node(1, "10.3.1.0/24"))
	p.SetNode("c3", "b", node(3, "10.3.2.0/24"))
	p.Update()
	p.Update()
	if c2, c3 := show(meshOf(p, "c2")), show(meshOf(p, "c3")); c2 != "a key 1 allowed 10.2.1.0/24" ||
		c3 != "b key 3 allowed 10.3.2.0/24" {
		t.Errorf("peers of c2: %s; of c3: %s", c2, c3)
	}
	if got := fmt.Sprint(meshOf(p,
		"c3").Problems); got != "[node c3/a has the public key of c2/a: it does not become a peer until it has its own key]" {
		t.Errorf("problems %s", got)
	}
}

func TestR10AKeyOfTheOwnClusterIsNoPeers(t *testing.T) {
	p := New(remotes())
	p.SetNode("c2", "a", node(1, "10.2.1.0/24"))
	p.SetNode("c2", "b", node(2, "10.2.2.0/24"))
	p.SetNode("c3", "a", node(3, "10.3.1.0/24"))
	p.Update()
	p.Update()
	p.TakeChanges("c2")
	p.TakeChanges("c3")
	p.SetOwnNode("n1", [][]byte{key(9)}, nil)
	if changed := p.Update(); len(changed) != 0 {
		t.Errorf("a key that nobody has changes %v", changed)
	}
	// A kubelet may annotate its Node with any keys, and takes no peer away by it (H6 of the red team).
	p.SetOwnNode("n2", [][]byte{key(8), key(1), key(2), key(3)}, nil)
	p.Update()
	m, m3 := meshOf(p, "c2"), meshOf(p, "c3")
	if show(m) != "a key 1 allowed 10.2.1.0/24; b key 2 allowed 10.2.2.0/24" || show(m3) != "a key 3 allowed 10.3.1.0/24" {
		t.Errorf("peers %s; %s", show(m), show(m3))
	}
	if len(m.Problems) != 2 ||
		m.Problems[0] != "this cluster's node n2 claims the public key of c2/a, which remains the peer with this key" {
		t.Errorf("problems %q", m.Problems)
	}
	p.SetOwnNode("n2", nil, nil)
	if p.Update(); len(meshOf(p, "c2").Problems) != 0 {
		t.Errorf("problems %q", meshOf(p, "c2").Problems)
	}
	// And the other way round: the key is the own cluster's before a remote claims it.
	p.SetOwnNode("n4", [][]byte{key(5)}, nil)
	p.SetNode("c3", "a", node(5, "10.3.1.0/24"))
	p.Update()
	if m := meshOf(p, "c3"); len(m.Peers) != 0 || len(m.Problems) != 1 {
		t.Errorf("peers %s, problems %q", show(m), m.Problems)
	}
}

// Nodes of two clusters may share a subnet, but not an address.
func TestR11APeerIsAtNoAddressOfTheOwnCluster(t *testing.T) {
	p := New(remotes())
	p.SetNode("c2", "a", node(1, "10.2.1.0/24"))
	p.SetNode("c2", "b", node(2, "10.2.2.0/24"))
	p.Update()
	p.SetOwnNode("n1", [][]byte{key(9)}, []netip.Addr{netip.MustParseAddr("172.18.2.2")})
	if changed := p.Update(); !slices.Contains(changed, "c2") {
		t.Errorf("changed %v", changed)
	}
	m := meshOf(p, "c2")
	if show(m) != "a key 1 allowed 10.2.1.0/24; b key 2 allowed 10.2.2.0/24" || len(m.Problems) != 1 ||
		m.Problems[0] != "this cluster's node n1 claims the address 172.18.2.2 of c2/b, which remains the peer at this "+
			"address" {
		t.Errorf("peers %s, problems %q", show(m), m.Problems)
	}
	// Who comes to such an address is none.
	p.SetNode("c2", "a", &semaphorev1.Node{PodCidrs: []string{"10.2.1.0/24"},
		Wireguard: &semaphorev1.WireGuardEndpoint{PublicKey: key(1), Address: "172.18.2.2:1"}})
	p.Update()
	if m := meshOf(p, "c2"); show(m) != "b key 2 allowed 10.2.2.0/24" ||
		!strings.Contains(m.Problems[0],
			"node c2/a publishes the endpoint address 172.18.2.2, which belongs to this cluster's node n1") {
		t.Errorf("peers %s, problems %q", show(m), m.Problems)
	}
	p.SetNode("c2", "a", node(1, "10.2.1.0/24"))
	p.SetOwnNode("n1", nil, nil)
	p.Update()
	if m := meshOf(p, "c2"); len(m.Peers) != 2 ||
		len(p.ownNodes.nodes)+claimed(p.ownNodes.keys)+claimed(p.ownNodes.addresses) != 0 {
		t.Errorf("peers %s, local %v", show(m), p.ownNodes)
	}
	p.SetNode("c2", "a", nil)
	p.SetNode("c2", "b", nil)
	p.Update()
	if claimed(p.byKey)+claimed(p.byAddress) != 0 {
		t.Errorf("claims of nobody: %v %v", p.byKey, p.byAddress)
	}
}

// TestBothUnreachable: a node that calls is a peer as long as it can call one node here, and each pair of nodes that
// both call is named.
func TestBothUnreachable(t *testing.T) {
	p := New(remotes())
	calls := node(1, "10.2.1.0/24")
	calls.Wireguard.Address, calls.Wireguard.Calls = "", true
	p.SetNode("c2", "a", calls)
	p.SetNode("c2", "b", node(2, "10.2.2.0/24"))
	p.SetOwnNode("n1", [][]byte{key(8)}, nil)
	p.SetOwnNode("n2", [][]byte{key(9)}, nil)
	p.SetOwnNode("master", nil, []netip.Addr{netip.MustParseAddr("172.18.1.10")}) // no agent
	check := func(name, peers, problem string) {
		t.Helper()
		p.Update()
		m := meshOf(p, "c2")
		if show(m) != peers || problem == "" && len(m.Problems) > 0 || problem != "" &&
			(len(m.Problems) != 1 || !strings.Contains(m.Problems[0], problem)) {
			t.Errorf("%s: peers %s, problems %q; want %s, %q", name, show(m), m.Problems, peers, problem)
		}
	}
	const both, onlyB = "a key 1 allowed 10.2.1.0/24; b key 2 allowed 10.2.2.0/24", "b key 2 allowed 10.2.2.0/24"
	check("both own nodes are reached", both, "")
	p.SetOwnCalls("n1", []string{"c2"})
	check("one calls, too", both, "node c2/a and this cluster's node n1 both have no address at which the other could")
	p.SetOwnCalls("n2", []string{"c2", "c3"})
	check("all that are known call, and there may be others", both, "node n1, n2 both")
	p.KnowOwnNodes()
	check("all call", onlyB, "node n1, n2 both have no address")
	p.SetOwnCalls("n2", []string{"c3"})
	check("one is reached again", both, "(1 of 2 nodes here)")
	p.SetOwnCalls("n1", nil)
	check("both are", both, "")
	p.SetOwnNode("n2", nil, nil)
	p.SetOwnCalls("n1", []string{"c2"})
	check("the only one calls", onlyB, "(1 of 1 nodes here)")
}
