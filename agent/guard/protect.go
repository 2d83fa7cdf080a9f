package guard

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/stream"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Restore sets the guard of an earlier agent, before this one does anything else, and the remotes that this node
// calls. c is the state that it saved; nil for none that can be used. If that has a list of guards, rules of other
// remotes come from the boot unit, and from the broker alone.
func (m *Monitor) Restore(c *stream.StateFile) {
	if c == nil {
		c = &stream.StateFile{}
	}
	m.mu.Lock()
	m.calls = c.Calls
	for _, r := range c.Guarded() {
		if plan.Cluster(r.GetCluster()) == nil {
			m.listed[r.GetCluster()] = r
		}
	}
	m.mu.Unlock()
	for _, r := range c.Guard { // a file without a list does not have refused prefixes either
		m.earlier[r.GetCluster()] = append(m.earlier[r.GetCluster()], parsed(r.GetPodSubnets())...)
	}
	if len(c.Guard) == 0 && m.declares() {
		for _, cluster := range m.guard.Clusters() {
			m.earlier[cluster] = m.guard.Subnets(cluster)
		}
	}
	m.GuardRemotes()
}

// configured returns the remotes to guard whether or not their nodes are known, by cluster. It must be called with mu
// held.
func (m *Monitor) configured() map[string]*semaphorev1.GuardedRemote {
	if m.declared != nil {
		return m.remotes
	}
	return m.listed
}

// StreamBegins takes the begin of a stream: its broker has named no remotes yet.
func (m *Monitor) StreamBegins() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.node.Heard, m.node.Guarded, m.spoken = false, false, false
	m.board.PutNode(m.node)
}

// SetRemotes sets the broker's list of all configured remotes.
func (m *Monitor) SetRemotes(list *semaphorev1.Guard) {
	named := map[string]*semaphorev1.GuardedRemote{}
	for _, r := range list.GetRemotes() {
		if err := plan.Cluster(r.GetCluster()); err != nil {
			slog.Warn("the broker names a remote to guard that is invalid; the agent ignores it", "error", err)
			continue
		}
		named[r.GetCluster()] = r
	}
	m.mu.Lock()
	m.listed = named
	if m.declared != nil {
		for cluster := range named {
			if _, ok := m.remote(cluster); !ok {
				slog.Warn("the broker names a remote to guard that the subnets file does not name; the agent ignores it",
					"remote", cluster)
			}
		}
	}
	m.node.Heard, m.node.Guarded, m.work.Remotes = true, false, true
	m.board.PutNode(m.node)
	m.mu.Unlock()
	m.changed()
}

// Synced takes the end mark of a broker's state. If that broker sent no list of remotes, the list of an
// earlier broker no longer counts.
func (m *Monitor) Synced() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.node.Heard {
		m.listed = nil
	}
}

// GuardRemotes guards the remotes without a desired device. The others are guarded with their device.
func (m *Monitor) GuardRemotes() {
	m.mu.Lock()
	remotes, ended := maps.Clone(m.configured()), maps.Clone(m.ended)
	maps.DeleteFunc(m.ended, func(cluster string, _ bool) bool { return remotes[cluster] == nil })
	m.mu.Unlock()
	for cluster := range ended {
		if remotes[cluster] == nil && m.session.Device(cluster) == nil {
			m.unprotect(cluster)
		}
	}
	maps.DeleteFunc(remotes, func(cluster string, _ *semaphorev1.GuardedRemote) bool {
		return m.session.Device(cluster) != nil
	})
	bounds, _, failed := m.Bounds()
	for _, cluster := range slices.Sorted(maps.Keys(remotes)) {
		r := remotes[cluster]
		ours, err := m.InterfaceIsOurs(cluster)
		want := &semaphorev1.Device{Cluster: cluster, PodSubnets: r.GetPodSubnets(), Permissive: m.mayPassInTheClear(r)}
		bounds, unnamed := m.Within(bounds, cluster)
		if unnamed != nil {
			continue // it was just removed from the subnets file
		}
		failed = errors.Join(failed, err, m.Protect(cluster, want, bounds, !ours))
	}
	failed = errors.Join(append(m.guardUndeclared(bounds), failed)...)
	m.mu.Lock()
	m.guardedAt = time.Now()
	complete := failed == nil && !m.unsound
	for cluster := range m.configured() {
		complete = complete && m.subnets[cluster] != nil // a device that could not be read is not guarded either
	}
	if complete {
		m.node.Guarded = m.node.Heard && (m.declared == nil || m.declared.Known)
		m.board.PutNode(m.node)
	} else {
		m.work.Remotes, m.work.Guard = true, true // a guard that was set with its device is only restored
	}
	m.mu.Unlock()
	if complete && len(remotes) > 0 {
		m.changed()
	}
}

// InterfaceIsOurs reports whether no other program has an interface with the name of the device to a cluster, except
// semaphore-wireguard, which encrypts the packets itself. It fails, and assumes so, if the kernel does not list
// interfaces.
func (m *Monitor) InterfaceIsOurs(cluster string) (bool, error) {
	links, err := m.kernel.Links()
	if err != nil {
		return true, err
	}
	name := naming.Device(cluster)
	i := slices.IndexFunc(links, func(l kernel.Link) bool { return l.Name == name })
	if i < 0 || links[i].Alias == naming.DeviceAlias(cluster) {
		return true, nil
	}
	d, err := m.kernel.Device(name)
	return err == nil && (d == nil || plan.OwnerOf(cluster, d) != plan.Foreign), nil
}

// Guarded returns the guards of remotes with a desired device and of others, for a later agent and for a boot. It omits
// prefixes that this node's bounds refused, because a boot does not know the bounds.
func (m *Monitor) Guarded() []*semaphorev1.GuardedRemote {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*semaphorev1.GuardedRemote
	for _, cluster := range slices.Sorted(maps.Keys(m.subnets)) {
		r := &semaphorev1.GuardedRemote{Cluster: cluster, Permissive: m.permissive[cluster]}
		for _, subnet := range m.subnets[cluster] {
			r.PodSubnets = append(r.PodSubnets, subnet.String())
		}
		out = append(out, r)
	}
	return out
}

// UnconfiguredGuards returns the clusters that are guarded, also by an earlier agent, and that no list of remotes
// names.
func (m *Monitor) UnconfiguredGuards() []string {
	clusters := m.guard.Clusters()
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(clusters, func(cluster string) bool { return m.configured()[cluster] != nil })
}

// RoutedSubnets returns the subnets of a remote that are routed or guarded, or were before this node booted: its device
// may no longer exist.
func (m *Monitor) RoutedSubnets(cluster string, existing *kernel.Device) []netip.Prefix {
	subnets := slices.Concat(m.guard.Subnets(cluster), m.earlier[cluster])
	if existing != nil {
		subnets = append(subnets, existing.Routes...)
	}
	return subnets
}

// Protect sets the guard of a remote before its device exists, and whether or not that succeeds: no packet of the
// remote leaves in the clear, or it is counted if the remote is permissive. The guard omits prefixes that no remote can
// have, which would cut the node off. It includes the subnets file's prefixes, whatever the broker desires. closed
// means that an interface with the device's name belongs to another program. A guard that fails does not prevent the
// device, which protects more. The cluster's name must have passed plan.Cluster.
func (m *Monitor) Protect(cluster string, want *semaphorev1.Device, bounds plan.Bounds, closed bool) error {
	device := naming.Device(cluster)
	if bounds.Existing == nil {
		bounds.Existing = m.RoutedSubnets(cluster, nil)
	}
	r, all := Remote{Permissive: want.GetPermissive(), Closed: closed}, want.GetPodSubnets()
	if own := bounds.Remote; own != nil {
		all, r.Nodes, r.Port = texts(own.Pods), own.Nodes, own.Port
	}
	subnets, _, _ := plan.Subnets(all, bounds)
	subnets = m.withRetained(cluster, subnets, bounds)
	if subnets == nil {
		subnets = []netip.Prefix{} // known, and nothing to guard
	}
	elsewhere, err := m.kernel.Elsewhere(device, subnets)
	if err != nil {
		slog.Warn("cannot read the routes; the guard assumes that none leads into the device", "device", device, "error", err)
	}
	r.Subnets, r.RoutedElsewhere = subnets, elsewhere && !closed
	changed, err := m.guard.Set(cluster, r)
	if changed {
		slog.Info("set the guard", "device", device, "subnets", subnets, "permissive", r.Permissive, "closed", r.Closed)
	}
	delete(m.earlier, cluster) // the desired part of it is guarded now
	m.mu.Lock()
	defer m.mu.Unlock()
	m.permissive[cluster] = r.Permissive
	if !slices.Equal(m.subnets[cluster], subnets) || m.subnets[cluster] == nil {
		m.subnets[cluster] = subnets
		m.work.Routes, m.work.Settings = true, true
	}
	m.guarded(err)
	if errors.Is(err, kernel.ErrNoNFTables) {
		return nil // reported, and no reason to keep pods off the node: the unreachable routes remain
	}
	return err
}

func texts(prefixes []netip.Prefix) []string {
	out := make([]string, len(prefixes))
	for i, p := range prefixes {
		out[i] = p.String()
	}
	return out
}

// Removed must be called when the broker removed the device to a cluster. While the subnets file names the remote, its
// guard remains: a broker that an attacker controls must not make packets leave in the clear. Without a file it remains
// while the newest list of remotes, which may be newer than the removal, names the remote.
func (m *Monitor) Removed(cluster string) {
	retained := m.retained(cluster)
	m.mu.Lock()
	declares := m.declared != nil
	_, named := m.remote(cluster)
	if !declares {
		named = m.node.Heard && m.listed[cluster] != nil
	}
	if !declares && named {
		m.ended[cluster] = true // it ends with the next list that does not name the remote, if that comes after this
	}
	m.work.Remotes = m.work.Remotes || declares || named // the guard must no longer accept packets into the device
	if !declares && !named {
		delete(m.listed, cluster)
	}
	m.mu.Unlock()
	if declares && named {
		slog.Warn("the broker removed a remote that the subnets file names; packets to its pods are dropped",
			"remote", cluster)
	}
	if named {
		return
	}
	if len(retained) > 0 {
		return // the broker's list of remotes still names it, or is not complete: guardUndeclared decides
	}
	m.unprotect(cluster)
}

// Forget discards an earlier agent's guard of a cluster whose device was removed.
func (m *Monitor) Forget(cluster string) { delete(m.earlier, cluster) }

func (m *Monitor) unprotect(cluster string) {
	_, err := m.guard.Remove(cluster)
	m.reportRetained(cluster, nil, false)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.subnets, cluster)
	delete(m.permissive, cluster)
	m.work.Routes, m.work.Settings = true, true
	m.guarded(err)
}

// guarded records the result of the last change of the guard. It must be called with mu held.
func (m *Monitor) guarded(err error) {
	now := ""
	if err != nil {
		now = err.Error()
	}
	m.unsound = err != nil && !errors.Is(err, kernel.ErrNoNFTables)
	if now != m.problems.guard {
		m.problems.guard = now
		m.publish()
	}
}

func (m *Monitor) checkGuard() error {
	changed, err := m.guard.Restore(m.session.Current() && len(m.board.Get().Orphans) == 0)
	if changed {
		slog.Warn("restored the guard, which another program changed or an earlier agent left")
	}
	return err
}
