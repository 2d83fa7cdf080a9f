//go:build ignore

package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-semaphore/semaphore/agent/guard"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/sysctl"
	"github.com/kube-semaphore/semaphore/agent/wireguard"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// surroundings are what the agent knows of the node around its devices. They are guarded by the agent's mu.
type surroundings struct {
	// addresses are the node's, as they were last listed at addressesAt; stale says that they have changed.
	addresses   []wireguard.Address
	addressesAt time.Time
	stale       bool
	// podCIDRs are the node's own, as the broker last said; none for unknown. reserved are addresses among them that it keeps free for
	// the node.
	podCIDRs []netip.Prefix
	reserved []netip.Addr
	// networkHeard says that a broker has said so in a message of its own: what Attached says is part of that.
	networkHeard bool
	// subnets are those that are guarded for each remote that is wanted.
	subnets map[string][]netip.Prefix
	// guard, source, settings and look are what is wrong with each, in sentences, and shadows the routes that lead
	// past the device of each remote; problems is all of it.
	guard, source, settings, look []string
	shadows                       map[string][]string
	problems                      []string
	clearPackets                  uint64
	// counts are those of the guard, by cluster, and lastClear when packets last passed in the clear, as far as was seen.
	counts    map[string]guard.Count
	lastClear map[string]time.Time
	lookedAt  time.Time
}

// nodeWork is what of the node around the devices is to be looked at.
type nodeWork struct{ routes, settings, guard bool }

func (w nodeWork) any() bool { return w != nodeWork{} }

// changedByKernel marks what has to be looked at because of what the kernel tells, which may be our own doing.
func (a *agent) changedByKernel(e wireguard.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ours := false
	for _, cluster := range a.state.Clusters() {
		ours = ours || naming.Device(cluster) == e.Interface
	}
	// What addresses our own devices have says nothing of the node.
	addresses := e.Addresses && !ours
	a.around.stale = a.around.stale || addresses
	for _, cluster := range a.state.Clusters() {
		route := e.Route.IsValid() && plan.Inside(e.Route, a.around.subnets[cluster])
		if addresses || route || e.Rules || naming.Device(cluster) == e.Interface {
			a.dirty.healing[cluster] = true
			a.poke()
		}
		a.dirty.node.routes = a.dirty.node.routes || route
	}
	if e.Rules || e.Route.IsValid() && e.Interface == "" { // an unreachable route is of no interface
		a.dirty.node.guard = true
		a.poke()
	}
	if e.Settings {
		a.dirty.node.settings = true
		a.poke()
	}
}

// addressesLast is how long addresses are taken for those that they are while the kernel tells of no change. They are listed once in that time
// all the same: a list holds those of every Service where kube-proxy runs in its mode ipvs, and costs as much.
const addressesLast = 10 * time.Minute

// listAgain has the node's addresses listed again when that is due. It is called with mu held.
func (a *agent) listAgain(now time.Time) {
	a.around.stale = a.around.stale || now.Sub(a.around.addressesAt) >= addressesLast
}

// addresses are the node's, without those of Services.
func (a *agent) addresses() ([]wireguard.Address, error) {
	a.mu.Lock()
	have, listed := a.around.addresses, !a.around.stale && !a.around.addressesAt.IsZero()
	a.around.stale = false
	a.mu.Unlock()
	if listed {
		return have, nil
	}
	now, err := a.host.Addresses()
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.around.stale = true
		return nil, err
	}
	a.around.addresses, a.around.addressesAt = now, time.Now()
	return now, nil
}

func (a *agent) changedGuard() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dirty.node.guard = true
	a.poke()
}

// attachedNode takes what the broker says of this node itself. It is called with mu held.
func (a *agent) attachedNode(podCIDRs, reserved []string) {
	var own []netip.Prefix
	for _, text := range podCIDRs {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			own = append(own, prefix)
		}
	}
	var free []netip.Addr
	for _, text := range reserved {
		if addr, err := netip.ParseAddr(text); err == nil {
			free = append(free, addr)
		}
	}
	// A broker that does not know is no reason to change what stands.
	if len(own) == 0 || slices.Equal(own, a.around.podCIDRs) && slices.Equal(free, a.around.reserved) {
		return
	}
	a.around.podCIDRs, a.around.reserved = own, free
	for _, cluster := range a.state.Clusters() {
		a.dirty.healing[cluster] = true
	}
}

// sources are those of routes, as of now.
func (a *agent) sources(addresses []wireguard.Address) plan.Sources {
	a.mu.Lock()
	defer a.mu.Unlock()
	from := plan.Source{Setting: a.cfg.RouteSource, PodPrefixes: a.around.podCIDRs, Reserved: a.around.reserved}
	for _, cluster := range slices.Concat(a.state.Clusters(), slices.Collect(maps.Keys(a.orphans))) {
		from.Devices = append(from.Devices, naming.Device(cluster))
	}
	sources, problem := plan.ChooseSources(from, addresses)
	var now []string
	if problem != "" {
		now = []string{problem}
	}
	if !slices.Equal(now, a.around.source) {
		a.around.source = now
		a.tellNode()
	}
	return sources
}

// unwanted is for a remote that the broker wants no more.
func (a *agent) unwanted(cluster string) {
	a.mu.Lock()
	declares := a.declared.subnets != nil
	_, named := a.remote(cluster)
	a.dirty.guard = a.dirty.guard || declares // what it had of the device that has gone is put right
	a.mu.Unlock()
	if !declares || !named {
		a.unprotect(cluster)
		return
	}
	slog.Warn("the broker has taken out a remote that the subnets file names: packets to its pods are stopped", "remote", cluster)
}

// unprotect is for a remote that has gone for good.
func (a *agent) unprotect(cluster string) {
	_, err := a.guard.Remove(cluster)
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.around.subnets, cluster)
	a.dirty.node.routes, a.dirty.node.settings = true, true
	a.guarded(err)
}

// guarded notes how the last setting of the guard went. It is called with mu held.
func (a *agent) guarded(err error) {
	var now []string
	if err != nil {
		now = []string{err.Error()}
	}
	if !slices.Equal(now, a.around.guard) {
		a.around.guard = now
		a.tellNode()
	}
}

// lookAtNode looks at what is around the devices: what it can put right it does, and the rest it tells.
func (a *agent) lookAtNode(work nodeWork) {
	a.mu.Lock()
	subnets, shadows := maps.Clone(a.around.subnets), a.around.shadows
	a.mu.Unlock()
	var guarded error
	if work.guard {
		guarded = a.lookAtGuard()
	}
	var failed []error
	var clear uint64
	counts, err := a.guard.Counts()
	if !errors.Is(err, guard.ErrNoNFTables) { // which a look at the guard tells
		failed = append(failed, err)
	}
	for _, c := range counts {
		clear += c.Out + c.In
	}
	if work.routes {
		shadows, err = a.shadows(subnets)
		failed = append(failed, err)
	}
	var networks []sysctl.Network
	for _, cluster := range slices.Sorted(maps.Keys(subnets)) {
		networks = append(networks, sysctl.Network{Device: naming.Device(cluster), Subnets: subnets[cluster], Shadowed: len(shadows[cluster]) > 0})
	}
	values, err := sysctl.Read(networks)
	failed = append(failed, err)
	var look []string
	if err := errors.Join(failed...); err != nil {
		look = []string{err.Error()}
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	a.around.lookedAt = time.Now()
	for cluster, c := range counts {
		if was := a.around.counts[cluster]; c.PassedOut > was.PassedOut || c.PassedIn > was.PassedIn {
			a.around.lastClear[cluster] = a.around.lookedAt
		}
	}
	if counts != nil {
		a.around.counts = counts
	}
	a.around.shadows, a.around.settings, a.around.look, a.around.clearPackets = shadows, sysctl.Problems(values, networks), look, clear
	if work.guard {
		a.guarded(guarded)
	}
	a.tellNode()
}

// lookAtGuard sets the guard right where it was changed.
func (a *agent) lookAtGuard() error {
	a.mu.Lock()
	known := a.state.Current() && len(a.orphans) == 0
	a.mu.Unlock()
	changed, err := a.guard.Look()
	if changed {
		slog.Warn("the guard had been changed and was set right")
	}
	if known {
		err = errors.Join(err, a.guard.Sweep())
	}
	return err
}

// shadows are the routes of others that lead past devices, by cluster.
func (a *agent) shadows(subnets map[string][]netip.Prefix) (map[string][]string, error) {
	all := slices.Concat(slices.Collect(maps.Values(subnets))...)
	others, err := a.host.Foreign(func(p netip.Prefix) bool { return plan.Inside(p, all) })
	lines := map[string][]string{}
	for cluster := range subnets {
		lines[cluster] = plan.Shadows(naming.Device(cluster), subnets[cluster], others)
	}
	return lines, err
}

// mostProblems is how many are told of a node.
const mostProblems = 20

// tellNode gathers what is wrong with the node, and logs what is new of it. It is called with mu held.
func (a *agent) tellNode() {
	all := slices.Concat(a.declaredProblems(), a.around.guard, a.around.source, a.around.settings, a.around.look)
	for _, cluster := range slices.Sorted(maps.Keys(a.around.shadows)) {
		all = append(all, a.around.shadows[cluster]...)
	}
	if more := len(all) - mostProblems; more > 0 {
		all = append(all[:mostProblems:mostProblems], fmt.Sprintf("and %d more", more))
	}
	for i, p := range all {
		if all[i] = tellable(p); !slices.Contains(a.around.problems, all[i]) {
			slog.Warn("the node is not as it should be", "problem", all[i])
		}
	}
	for _, p := range a.around.problems {
		if !slices.Contains(all, p) {
			slog.Info("the node is as it should be again", "problem", p)
		}
	}
	a.around.problems = all
}

// addRoute makes a route into a device, or sets its source. One that stood and that another's has taken the place of
// is taken back.
func (a *agent) addRoute(claims *plan.Claims, s plan.Steps, prefix netip.Prefix) error {
	err := a.host.AddRoute(s.Name, prefix, s.SourceOf(prefix))
	now := time.Now()
	if !errors.Is(err, wireguard.ErrTaken) || !claims.Retake(prefix, now) {
		return err
	}
	slog.Warn("another's route has taken the place of ours, which is put back", "device", s.Name, "route", err)
	claims.Retaken(prefix, now)
	return a.host.ReplaceRoute(s.Name, prefix, s.SourceOf(prefix))
}
