// Package guard keeps packets to and from remote pods from going in the clear. For each remote there are, whatever
// becomes of its device:
//
//   - unless the remote is permissive, an unreachable route for each of its pod subnets, behind the route into the device: while there is no
//     device, or no route into it, packets are refused rather than sent to the default gateway;
//   - rules in a table of nftables that drop, and count, packets to the subnets that leave by any interface but
//     the device, and packets from the subnets that enter by any other: the first, whatever route leads them there, the
//     second because policies that name remote pods trust their addresses. Those of a permissive remote they only count.
//
// Both stand before the device does, stay when the agent stops, and go only with the remote.
//
// The package owns that table and those routes, and nothing else of the node. It decides nothing: whoever calls it has
// made sure that the subnets can be a remote's. It imports nothing of the agent but agent/wireguard, for the
// protocol number of routes.
package guard

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
)

// Guard is the node's. Clusters and Counts may be called at any time, all else by one goroutine.
type Guard struct {
	inbound bool

	mu sync.Mutex
	// remotes are nil as long as it is not known what an earlier Guard has left.
	remotes Remotes
}

// New makes a Guard that goes on with what an earlier one has left on the node. inbound is whether packets
// from remote pods are dropped when they enter past the device.
func New(inbound bool) *Guard { return &Guard{inbound: inbound} }

// load reads what an earlier Guard has left, once. Without nftables that is nothing. It is called with mu held.
func (g *Guard) load() error {
	if g.remotes != nil {
		return nil
	}
	stands, err := read()
	if err != nil && !errors.Is(err, ErrNoNFTables) {
		return err
	}
	g.remotes = remember(stands.comments[out])
	return nil
}

// Clusters are those that are guarded, sorted; none as long as that cannot be read.
func (g *Guard) Clusters() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.load() != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(g.remotes))
}

// Set guards a remote cluster, in place of what was guarded of it before. It returns whether anything had to be
// changed on the node.
func (g *Guard) Set(cluster string, r Remote) (changed bool, err error) {
	r.Subnets = slices.Clone(r.Subnets)
	slices.SortFunc(r.Subnets, netip.Prefix.Compare)
	r.Subnets = slices.Compact(r.Subnets)
	if len(r.Subnets) == 0 {
		return g.Remove(cluster)
	}
	return g.change(func(all Remotes) { all[cluster] = r })
}

// Remove takes back all that guards a cluster. It is for a remote that has gone for good.
func (g *Guard) Remove(cluster string) (changed bool, err error) {
	return g.change(func(all Remotes) { delete(all, cluster) })
}

// Look puts right what is not any more as it was set. It is called when someone else may have changed it.
func (g *Guard) Look() (changed bool, err error) { return g.change(func(Remotes) {}) }

func (g *Guard) change(change func(Remotes)) (bool, error) {
	g.mu.Lock()
	if err := g.load(); err != nil {
		g.mu.Unlock()
		return false, err
	}
	before := subnets(g.remotes)
	now := maps.Clone(g.remotes)
	change(now)
	g.remotes = now
	g.mu.Unlock()
	routes, err1 := g.routes(now, missing(before, subnets(now)))
	rules, err2 := g.rules(now)
	return routes || rules, errors.Join(err1, err2)
}

// routes makes those unreachable routes that are missing, and takes out those that are not wanted any more.
func (g *Guard) routes(remotes Remotes, gone []netip.Prefix) (bool, error) {
	have, err := refusals()
	if err != nil {
		return false, err
	}
	lacking := missing(subnets(remotes), have)
	var failed []error
	for _, p := range lacking {
		failed = append(failed, refuse(p))
	}
	for _, p := range gone {
		failed = append(failed, unrefuse(p))
	}
	return len(lacking)+len(gone) > 0, errors.Join(failed...)
}

// rules writes the table where it is not as wanted.
func (g *Guard) rules(remotes Remotes) (bool, error) {
	stands, err := read()
	if err != nil {
		return false, err
	}
	if len(remotes) == 0 {
		return deleteTable()
	}
	want := commentsOf(remotes.rules())
	var wantIn []string
	if g.inbound {
		wantIn = want
	}
	if !stands.misplaced && slices.Equal(stands.comments[out], want) && slices.Equal(stands.comments[in], wantIn) {
		return false, nil
	}
	return true, write(remotes, g.inbound, stands)
}

// subnets are those that are refused where no route leads into a device.
func subnets(remotes Remotes) []netip.Prefix {
	var all []netip.Prefix
	for _, r := range remotes {
		if !r.Permissive {
			all = append(all, r.Subnets...)
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

// Sweep takes out unreachable routes that nothing guarded needs: those of an agent that had no nftables to keep
// in mind whose they were. It is called once all that is wanted is known.
func (g *Guard) Sweep() error {
	have, err := refusals()
	if err != nil {
		return err
	}
	g.mu.Lock()
	err = g.load()
	wanted := subnets(g.remotes)
	g.mu.Unlock()
	if err != nil {
		return err
	}
	var failed []error
	for _, p := range missing(have, wanted) {
		failed = append(failed, unrefuse(p))
	}
	return errors.Join(failed...)
}

// Count is how many packets were dropped, since the remote is guarded.
type Count struct {
	// Out would have left past the device, In have entered so.
	Out, In uint64
	// Permissive remotes have packets that did so, and passed: since they are permissive.
	Permissive          bool
	PassedOut, PassedIn uint64
}

// Counts are by cluster. They go on over restarts of the agent, and start anew when the node does or someone
// takes the table away.
func (g *Guard) Counts() (map[string]Count, error) {
	stands, err := read()
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	counts := make(map[string]Count, len(g.remotes))
	for cluster, r := range g.remotes {
		counts[cluster] = Count{
			Out: stands.counters[counterOf(out, r.Device)], In: stands.counters[counterOf(in, r.Device)],
			Permissive: r.Permissive, PassedOut: stands.counters[passedOf(out, r.Device)], PassedIn: stands.counters[passedOf(in, r.Device)],
		}
	}
	return counts, nil
}

// RemoveAll takes back all that guards, also that of another agent, and returns what it was, a line each.
func RemoveAll() ([]string, error) {
	var removed []string
	there, failed := deleteTable()
	if errors.Is(failed, ErrNoNFTables) {
		failed = nil // nor is there anything of ours
	}
	if there {
		removed = append(removed, "nftables table inet "+TableName)
	}
	prefixes, err := refusals()
	failed = errors.Join(failed, err)
	for _, p := range prefixes {
		if err := unrefuse(p); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		removed = append(removed, "unreachable route "+p.String())
	}
	return removed, failed
}
