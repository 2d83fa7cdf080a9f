package choice

import (
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/gaissmai/bart"
)

// This file decides which pods of a remote this cluster reaches. A pod that is ready in its own cluster is of use here
// only if a tunnel leads to it: packets to a strict remote go to the peer in whose allowed IPs their destination lies,
// or nowhere.
//
// In: the peers that the broker publishes to its agents, and those that the agents have applied. Out: a Set of
// addresses for each remote. Its callers know the peers, and apply the Set to endpoints.

// Patience is how long a new peer waits until all agents have applied it. An agent that takes longer is reported by
// itself, and must not keep all others from the peer's pods.
const Patience = 30 * time.Second

// Reachable are the addresses of one remote to which tunnels lead; immutable. A nil Set has all: nothing is known, or
// packets need no tunnel.
type Reachable struct{ table *bart.Table[string] }

// Has reports whether a tunnel leads to an address.
func (s *Reachable) Has(address netip.Addr) bool {
	if s == nil {
		return true
	}
	_, ok := s.table.Lookup(address.Unmap())
	return ok
}

// Peer is a node of a remote as the broker publishes it.
type Peer struct {
	Node       string
	AllowedIPs []string
	// Revision is that of its last change.
	Revision uint64
}

// Gate follows the peers of one remote. The zero value knows none.
type Gate struct {
	begun bool
	// stands are the prefixes of each node to which a tunnel leads, and since is when another was first seen.
	stands map[string]map[netip.Prefix]bool
	since  map[string]time.Time
}

// Update returns the Set for the peers that are published now, whether it differs from the one before, and the nodes
// whose peers are not everywhere yet. applied are the revisions that the attached agents have applied. A peer that
// stands already does so while it is published: a new key or another endpoint does not end it. The state that is
// published when the Gate begins remains, because agents had it before.
func (g *Gate) Update(peers []Peer, applied []uint64, now time.Time) (set *Reachable, changed bool, waiting []string) {
	was, since := g.stands, g.since
	g.stands, g.since = make(map[string]map[netip.Prefix]bool, len(peers)), map[string]time.Time{}
	set = &Reachable{&bart.Table[string]{}}
	everyone := uint64(math.MaxUint64)
	if len(applied) > 0 {
		everyone = slices.Min(applied)
	}
	for _, p := range peers {
		first, waits := since[p.Node]
		if !waits {
			first = now
		}
		everywhere := !g.begun || now.Sub(first) >= Patience || p.Revision <= everyone
		stands := map[netip.Prefix]bool{}
		for _, text := range p.AllowedIPs {
			prefix, err := netip.ParsePrefix(text)
			if err != nil { // admission refuses others
				continue
			}
			if everywhere || was[p.Node][prefix] {
				stands[prefix] = true
				set.table.Insert(prefix.Masked(), p.Node)
			} else {
				g.since[p.Node] = first
			}
		}
		if _, waits := g.since[p.Node]; waits {
			waiting = append(waiting, p.Node)
		}
		g.stands[p.Node] = stands
	}
	changed = !g.begun || !maps.EqualFunc(was, g.stands, maps.Equal)
	g.begun = true
	return set, changed, waiting
}
