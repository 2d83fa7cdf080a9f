// Package guard keeps packets to and from remote pods from going in the clear. For each remote there are, whatever
// becomes of its device:
//
//   - unless the remote is permissive, an unreachable route for each of its pod subnets, in the agent's table and behind the route into the
//     device: while there is no
//     device, or no route into it, packets are refused rather than sent to the default gateway;
//   - rules in a table of nftables that drop, and count, packets to the subnets that leave by any interface but
//     the device, and packets from the subnets that enter by any other: the first, whatever route leads them there, the
//     second because policies that name remote pods trust their addresses. Those of a permissive remote they only count;
//   - rules that drop, and count, packets of the device's own between its port and a place where no node of the remote is: WireGuard sends to
//     where a peer's last packet came from, and so would whoever has a peer's key choose whom this node sends to.
//
// They stand before the device does, stay when the agent stops, and go only with the remote.
//
// The package owns that table of nftables and those routes, and nothing else of the node. It decides nothing: whoever
// calls it has made sure that the subnets can be a remote's. It imports nothing of the agent but agent/routing and
// agent/netevents.
package guard

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/kube-semaphore/semaphore/agent/routing"
)

// Guard is the node's. Clusters and Counts may be called at any time, all else by one goroutine.
type Guard struct {
	inbound bool
	table   routing.Table
	// read reads what stands in nftables.
	read func() (standing, error)

	mu      sync.Mutex
	remotes Remotes
	// loaded says that remotes hold what an earlier Guard has left. Until then removed are those that are not to be
	// taken over of it any more.
	loaded  bool
	removed map[string]bool
}

// New makes a Guard that goes on with what an earlier one has left on the node. inbound is whether packets
// from remote pods are dropped when they enter past the device. Its routes are in table.
func New(inbound bool, table routing.Table) *Guard {
	return &Guard{inbound: inbound, table: table, read: read, remotes: Remotes{}, removed: map[string]bool{}}
}

// load reads what an earlier Guard has left, once. Without nftables that is nothing. It is called with mu held.
func (g *Guard) load() error {
	if g.loaded {
		return nil
	}
	stands, err := g.read()
	if err != nil && !errors.Is(err, ErrNoNFTables) {
		return err
	}
	refused, _, err := g.unreachableRoutes()
	if err != nil {
		return err
	}
	remotes := remember(stands.comments[out])
	rememberTunnels(remotes, stands.comments[arriving])
	for cluster, r := range remotes {
		// Nothing of it was refused, for whatever reason, and is not before that is known again.
		r.Elsewhere = len(missing(r.Subnets, refused)) == len(r.Subnets)
		if _, there := g.remotes[cluster]; !there && !g.removed[cluster] {
			g.remotes[cluster] = r
		}
	}
	g.loaded, g.removed = true, nil
	return nil
}

// Subnets are those of a cluster that are guarded, as far as that is known.
func (g *Guard) Subnets(cluster string) []netip.Prefix {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = g.load() // then those that were set
	return slices.Clone(g.remotes[cluster].Subnets)
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
	r.Nodes = slices.Clone(r.Nodes)
	slices.SortFunc(r.Nodes, netip.Prefix.Compare)
	r.Nodes = slices.Compact(r.Nodes)
	if len(r.Subnets) == 0 {
		return g.Remove(cluster)
	}
	return g.change(cluster, func(all Remotes) { all[cluster] = r })
}

// Remove takes back all that guards a cluster. It is for a remote that has gone for good.
func (g *Guard) Remove(cluster string) (changed bool, err error) {
	return g.change(cluster, func(all Remotes) { delete(all, cluster) })
}

// Look puts right what is not any more as it was set. It is called when someone else may have changed it.
func (g *Guard) Look() (changed bool, err error) { return g.change("", func(Remotes) {}) }

// change changes what is guarded of a cluster, and has the node follow. When it cannot be read what an earlier Guard
// has left, the rules stay as they are for now, which loses nothing, and the routes follow all the same.
func (g *Guard) change(cluster string, change func(Remotes)) (bool, error) {
	g.mu.Lock()
	unread := g.load()
	before := subnets(g.remotes)
	now := maps.Clone(g.remotes)
	change(now)
	if _, stays := now[cluster]; unread != nil && cluster != "" {
		g.removed[cluster] = !stays
	}
	g.remotes = now
	g.mu.Unlock()
	routes, err1 := g.routes(now, missing(before, subnets(now)))
	if unread != nil {
		return routes, errors.Join(err1, unread)
	}
	rules, err2 := g.rules(now)
	return routes || rules, errors.Join(err1, err2)
}

// routes makes those unreachable routes that are missing, with the rules that lead packets to them, and takes out those
// that are not wanted any more. One of another table, as of an earlier version, goes once ours stands.
func (g *Guard) routes(remotes Remotes, gone []netip.Prefix) (bool, error) {
	have, strays, err := g.unreachableRoutes()
	if err != nil {
		return false, err
	}
	wanted := subnets(remotes)
	lacking := missing(wanted, have)
	changed := len(lacking)+len(gone) > 0
	var failed []error
	for _, p := range lacking {
		failed = append(failed, g.refuse(p))
	}
	ruled := map[int]bool{}
	for _, p := range wanted {
		if family := routing.Family(p); !ruled[family] {
			ruled[family] = true
			added, err := g.table.Rule(family)
			changed, failed = changed || added, append(failed, err)
		}
	}
	if errors.Join(failed...) == nil {
		for _, r := range strays {
			changed, failed = true, append(failed, r.Delete())
		}
	}
	for _, p := range gone {
		failed = append(failed, g.unrefuse(p))
	}
	if len(gone) > 0 {
		_, err := routing.Tidy()
		failed = append(failed, err)
	}
	return changed, errors.Join(failed...)
}

// rules writes the table where it is not as wanted.
func (g *Guard) rules(remotes Remotes) (bool, error) {
	stands, err := g.read()
	if err != nil {
		return false, err
	}
	if len(remotes) == 0 {
		return deleteTable()
	}
	if stands.as(remotes, g.inbound) {
		return false, nil
	}
	return true, write(remotes, g.inbound, stands)
}

// subnets are those that are refused where no route leads into a device.
func subnets(remotes Remotes) []netip.Prefix {
	var all []netip.Prefix
	for _, r := range remotes {
		if !r.Permissive && !r.Elsewhere {
			all = append(all, r.Subnets...)
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

// Sweep takes out unreachable routes that nothing guarded needs: those of an agent that had no nftables to keep
// in mind whose they were. It is called once all that is wanted is known.
func (g *Guard) Sweep() error {
	have, strays, err := g.unreachableRoutes()
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
	gone := missing(have, wanted)
	for _, p := range gone {
		failed = append(failed, g.unrefuse(p))
	}
	for _, r := range strays {
		failed = append(failed, r.Delete())
	}
	if len(gone)+len(strays) > 0 {
		_, err := routing.Tidy()
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// Count is how many packets were dropped, since the remote is guarded.
type Count struct {
	// Out would have left past the device, In have entered so.
	Out, In uint64
	// Sent would have left for a place where no node of the remote is, and Arrived came from one, both in the tunnels'
	// own packets. Tunnel says whether such packets are dropped.
	Tunnel        bool
	Sent, Arrived uint64
	// Permissive remotes have packets that did so, and passed: since they are permissive.
	Permissive          bool
	PassedOut, PassedIn uint64
}

// Counts are by cluster. They go on over restarts of the agent, and start anew when the node does or someone
// takes the table away.
func (g *Guard) Counts() (map[string]Count, error) {
	stands, err := g.read()
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	counts := make(map[string]Count, len(g.remotes))
	for cluster, r := range g.remotes {
		counts[cluster] = Count{
			Out: stands.counters[counterOf(out, r.Device)], In: stands.counters[counterOf(in, r.Device)],
			Tunnel: r.tunnel(), Sent: stands.counters[counterOf(sending, r.Device)], Arrived: stands.counters[counterOf(arriving, r.Device)],
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
	routes, err := allRefusals()
	failed = errors.Join(failed, err)
	for _, r := range routes {
		if err := r.Delete(); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		removed = append(removed, r.Name())
	}
	rules, err := routing.Tidy()
	return append(removed, rules...), errors.Join(failed, err)
}
