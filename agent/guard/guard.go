// Package guard keeps packets to and from remote pods from being sent in the clear. Each remote has, whatever the
// state of its device:
//
//   - unless the remote is permissive, an unreachable route for each of its pod subnets, in the agent's table and
//     behind the route into the device: while there is no device, or no route into it, packets are refused rather than
//     sent to the default gateway;
//   - rules in a table of nftables that drop, and count, packets to the subnets that leave by any interface but the
//     device, and packets from the subnets that enter by any other: the first, whatever route leads them there, the
//     second because policies that name remote pods trust their addresses. Those of a permissive remote they only
//     count;
//   - rules that drop, and count, packets of the device's own between its port and a place where no node of the remote
//     is: WireGuard sends to where a peer's last packet came from, and so an attacker with a peer's key could choose
//     whom this node sends to.
//
// They exist before the device, remain when the agent stops, and are removed only with the remote.
//
// The package owns the nftables table and these routes, and nothing else on the node. The Guard decides nothing: the
// Monitor, which reads the node around the devices, has validated the subnets.
package guard

import (
	"errors"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/status"
)

// Guard is the node's guard. Clusters and Counts are safe for concurrent use, all else is for one goroutine.
type Guard struct {
	inbound bool
	table   kernel.RoutingTable
	read    func() (ruleset, error)

	mu      sync.Mutex
	remotes remotes
	// loaded means that remotes includes those of an earlier Guard. Until then removed are remotes that must not be loaded
	// any more.
	loaded  bool
	removed map[string]bool
	// sound means that rules and routes were those of remotes when the last change ended; kernel.FollowTable reports later
	// changes of others, and Restore repairs it.
	sound bool
}

// New makes a Guard that continues from the rules of an earlier one on the node. inbound selects whether packets from
// remote pods that bypass the device are dropped on entry. Its routes are in table.
func New(inbound bool, table kernel.RoutingTable) *Guard {
	return &Guard{inbound: inbound, table: table, read: readRuleset, remotes: remotes{}, removed: map[string]bool{}}
}

// load reads the rules of an earlier Guard, once; none without nftables. It must be called with mu held.
func (g *Guard) load() error {
	if g.loaded {
		return nil
	}
	existing, err := g.read()
	if err != nil && !errors.Is(err, kernel.ErrNoNFTables) {
		return err
	}
	refused, _, err := g.unreachableRoutes()
	if err != nil {
		return err
	}
	remotes := parseComments(existing.comments[out])
	parseTunnelComments(remotes, existing.comments[arriving])
	for cluster, r := range remotes {
		// No unreachable route of it exists, for whatever reason; none is added before the reason is known again.
		r.RoutedElsewhere = len(plan.Missing(r.Subnets, refused)) == len(r.Subnets)
		remotes[cluster] = r
	}
	g.adopt(remotes)
	return nil
}

// adopt adds the remotes that an earlier Guard left, but for those that were set or removed since this one began. It
// must be called with mu held.
func (g *Guard) adopt(left remotes) {
	for cluster, r := range left {
		if _, there := g.remotes[cluster]; !there && !g.removed[cluster] {
			g.remotes[cluster] = r
		}
	}
	g.loaded, g.removed = true, nil
}

// Subnets returns the guarded subnets of a cluster, as far as they are known.
func (g *Guard) Subnets(cluster string) []netip.Prefix {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = g.load() // on an error, those that were set remain
	return slices.Clone(g.remotes[cluster].Subnets)
}

// Clusters returns the guarded clusters, sorted; none while they cannot be read.
func (g *Guard) Clusters() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.load() != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(g.remotes))
}

// Set guards a remote cluster, and replaces its earlier guard. It reports whether anything had to be changed on the
// node. It fails if the kernel refuses or does not list a route or a rule, which may then be missing until Restore
// succeeds.
func (g *Guard) Set(cluster string, r Remote) (changed bool, err error) {
	r.Subnets, r.Nodes = canonical(r.Subnets), canonical(r.Nodes)
	if len(r.Subnets) == 0 {
		return g.Remove(cluster)
	}
	return g.apply(cluster, false, func(all remotes) { all[cluster] = r })
}

// Remove removes the guard of a cluster, for a remote that was removed permanently. It fails as Set does.
func (g *Guard) Remove(cluster string) (changed bool, err error) {
	return g.apply(cluster, false, func(all remotes) { delete(all, cluster) })
}

// Restore repairs rules and routes that another program may have changed. whole means that everything desired is known:
// then it also deletes unreachable routes that belong to no guarded remote, those of an agent without nftables, which
// records their clusters. It fails as Set does.
func (g *Guard) Restore(whole bool) (changed bool, err error) {
	return g.apply("", whole, func(remotes) {})
}

// apply changes the guard of a cluster, and applies it to the node. If the rules of an earlier Guard cannot be read,
// the rules remain unchanged for now, which is safe, and the routes are applied anyway.
func (g *Guard) apply(cluster string, whole bool, change func(remotes)) (bool, error) {
	g.mu.Lock()
	unread := g.load()
	before := subnets(g.remotes)
	now := maps.Clone(g.remotes)
	change(now)
	if cluster != "" && g.sound && unread == nil && reflect.DeepEqual(now, g.remotes) {
		g.mu.Unlock()
		return false, nil
	}
	if _, there := now[cluster]; unread != nil && cluster != "" {
		g.removed[cluster] = !there
	}
	g.remotes = now
	g.mu.Unlock()
	routes, err := g.routes(now, plan.Missing(before, subnets(now)), whole && unread == nil)
	err = errors.Join(err, unread)
	var rules bool
	if unread == nil {
		var failed error
		rules, failed = g.rules(now)
		err = errors.Join(err, failed)
	}
	g.sound = err == nil
	return routes || rules, err
}

// routes adds missing unreachable routes with the rules that lead packets to them, and deletes those that are no
// longer desired; whole means all but the desired ones. Routes of another table, of an agent with another
// configuration, are deleted once the new ones exist.
func (g *Guard) routes(remotes remotes, gone []netip.Prefix, whole bool) (bool, error) {
	have, strays, err := g.unreachableRoutes()
	if err != nil {
		return false, err
	}
	wanted := subnets(remotes)
	lacking := plan.Missing(wanted, have)
	if whole {
		gone = plan.Missing(have, wanted)
	}
	changed := len(lacking)+len(gone) > 0
	var failed []error
	for _, p := range lacking {
		failed = append(failed, g.unreachable(p).Add())
	}
	ruled := map[int]bool{}
	for _, p := range wanted {
		if family := kernel.Family(p); !ruled[family] {
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
		failed = append(failed, g.unreachable(p).Delete())
	}
	if len(gone) > 0 {
		failed = append(failed, kernel.DeleteUnusedRules())
	}
	return changed, errors.Join(failed...)
}

func (g *Guard) rules(remotes remotes) (bool, error) {
	existing, err := g.read()
	if err != nil {
		return false, err
	}
	if len(remotes) == 0 {
		return deleteTable()
	}
	wanted := remotes.wanted(g.inbound)
	if existing.matches(wanted) {
		return false, nil
	}
	return true, write(wanted, existing)
}

// subnets returns the subnets that need unreachable routes: none of IPv6 where the kernel lacks it and adds none.
func subnets(remotes remotes) []netip.Prefix {
	var all []netip.Prefix
	for _, r := range remotes {
		if !r.Permissive && !r.RoutedElsewhere {
			all = append(all, r.Subnets...)
		}
	}
	if kernel.LacksIPv6() {
		all = slices.DeleteFunc(all, func(p netip.Prefix) bool { return p.Addr().Is6() })
	}
	return canonical(all)
}

// canonical returns prefixes sorted, each once.
func canonical(prefixes []netip.Prefix) []netip.Prefix {
	return slices.Compact(slices.SortedFunc(slices.Values(prefixes), netip.Prefix.Compare))
}

// widest returns the prefixes that no other one contains, sorted.
func widest(all []netip.Prefix) (out []netip.Prefix) {
	for _, p := range canonical(all) { // a prefix comes before those in it
		if n := len(out); n == 0 || !out[n-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}

// Counts returns the counts by cluster. They continue over restarts of the agent, and start at 0 when the node restarts
// or another program deletes the table. It fails if nftables cannot be read.
func (g *Guard) Counts() (map[string]status.GuardCount, error) {
	packets, err := readCounters()
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	counts := make(map[string]status.GuardCount, len(g.remotes))
	for cluster, r := range g.remotes {
		counts[cluster] = status.GuardCount{
			Out: packets[counterOf(out, cluster)], In: packets[counterOf(in, cluster)],
			Tunnel: r.tunnel(), Sent: packets[counterOf(sending, cluster)],
			Arrived:    packets[counterOf(arriving, cluster)],
			Permissive: r.Permissive, PassedOut: packets[passedOf(out, cluster)],
			PassedIn: packets[passedOf(in, cluster)],
		}
	}
	return counts, nil
}

// RemoveTable removes the table, also that of another agent, and returns a line for it. The unreachable routes are
// removed with all routes (kernel.RemoveRouting).
func RemoveTable() (removed []string, err error) {
	there, err := deleteTable()
	if there {
		removed = append(removed, "nftables table inet "+TableName)
	}
	if errors.Is(err, kernel.ErrNoNFTables) {
		err = nil // then there is none
	}
	return removed, err
}
