package hostnet

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-semaphore/semaphore/agent/cache"
	"github.com/kube-semaphore/semaphore/agent/desired"
	"github.com/kube-semaphore/semaphore/agent/guard"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/wireguard"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// RestoreGuard guards what an earlier agent guarded, before this one does anything else. c is the state that it left;
// nil for none that can be used.
func (m *Monitor) RestoreGuard(c *cache.Contents) {
	if c != nil {
		m.mu.Lock()
		if m.declared.subnets == nil {
			m.remotes = map[string]*semaphorev1.GuardedRemote{}
			for _, r := range c.Guarded() {
				if plan.Cluster(r.GetCluster()) == nil {
					m.remotes[r.GetCluster()] = r
				}
			}
		}
		m.mu.Unlock()
	}
	m.restoreHeld(c)
	m.GuardRemotes()
}

// StreamBegins is called before the first message of a stream: its broker has named no remotes yet.
func (m *Monitor) StreamBegins() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.node.Heard, m.node.Guarded, m.spoken = false, false, false
	m.board.PutNode(m.node)
}

// SetRemotes takes the broker's list of all configured remotes.
func (m *Monitor) SetRemotes(list *semaphorev1.Guard) {
	named := map[string]*semaphorev1.GuardedRemote{}
	for _, r := range list.GetRemotes() {
		if err := plan.Cluster(r.GetCluster()); err != nil {
			slog.Warn("the broker wants a remote guarded that cannot be one", "error", err)
			continue
		}
		named[r.GetCluster()] = r
	}
	m.mu.Lock()
	m.listed = named
	if m.declared.subnets != nil {
		for cluster := range named {
			if _, ok := m.declared.remote(cluster); !ok {
				slog.Warn("the broker wants a remote guarded that the subnets file does not name; it is not",
					"remote", cluster)
			}
		}
		named = m.remotes
	}
	m.remotes, m.node.Heard, m.node.Guarded, m.work.Remotes = named, true, false, true
	m.board.PutNode(m.node)
	m.mu.Unlock()
	m.changed()
}

// Synced is called at the end mark of a broker's state. Of a broker that names no remotes, those that an earlier broker
// named do not count any more.
func (m *Monitor) Synced() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.node.Heard {
		return
	}
	m.listed = nil
	if m.declared.subnets == nil {
		m.remotes = nil
	}
}

// GuardRemotes guards those remotes that have no desired device yet. The others are guarded with their device.
func (m *Monitor) GuardRemotes() {
	m.mu.Lock()
	remotes := maps.Clone(m.remotes)
	m.mu.Unlock()
	maps.DeleteFunc(remotes, func(cluster string, _ *semaphorev1.GuardedRemote) bool {
		return m.session.Device(cluster) != nil
	})
	bounds, _, failed := m.Bounds()
	for _, cluster := range slices.Sorted(maps.Keys(remotes)) {
		r := remotes[cluster]
		ours, err := m.InterfaceIsOurs(cluster)
		want := &semaphorev1.Device{Cluster: cluster, PodSubnets: r.GetPodSubnets(), Permissive: m.passes(r)}
		bounds, unnamed := m.Within(bounds, cluster)
		if unnamed != nil {
			continue // it has just been taken out of the subnets file
		}
		failed = errors.Join(failed, err, m.Protect(cluster, &desired.Network{Device: want}, bounds, !ours))
	}
	failed = errors.Join(append(m.guardUndeclared(bounds), failed)...)
	m.mu.Lock()
	m.guardedAt = time.Now()
	complete := failed == nil
	for cluster := range m.remotes {
		complete = complete && m.subnets[cluster] != nil // a device that could not be read is not guarded either
	}
	if complete {
		m.node.Guarded = m.node.Heard
		m.board.PutNode(m.node)
	} else {
		m.work.Remotes = true
	}
	m.mu.Unlock()
	if complete && len(remotes) > 0 {
		m.changed()
	}
}

// InterfaceIsOurs reports whether nobody else has an interface with the name of the device to a cluster, but for
// semaphore-wireguard, which encrypts what goes past it.
func (m *Monitor) InterfaceIsOurs(cluster string) (bool, error) {
	links, err := m.kernel.Links()
	if err != nil {
		return true, err
	}
	name := naming.Device(cluster)
	i := slices.IndexFunc(links, func(l wireguard.Link) bool { return l.Name == name })
	if i < 0 || links[i].Alias == naming.DeviceAlias(cluster) {
		return true, nil
	}
	d, err := m.kernel.Device(name)
	return err == nil && (d == nil || plan.OwnerOf(cluster, d) != plan.Foreign), nil
}

// Guarded is what is guarded, of remotes with a desired device and of others, for a later agent and for a boot: without
// what this node's bounds refused, of which a boot knows nothing.
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

// UnconfiguredGuards are the clusters that are guarded, also by an earlier agent, and that no list of remotes names.
func (m *Monitor) UnconfiguredGuards() []string {
	clusters := m.guard.Clusters()
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(clusters, func(cluster string) bool { return m.remotes[cluster] != nil })
}

// RoutedSubnets are those of a remote that are routed or guarded, or were before this node booted: its device may be
// gone.
func (m *Monitor) RoutedSubnets(cluster string, existing *wireguard.Device) []netip.Prefix {
	subnets := slices.Concat(m.guard.Subnets(cluster), m.kept[cluster])
	if existing != nil {
		subnets = append(subnets, existing.Routes...)
	}
	return subnets
}

// Protect installs the guard of a remote before its device exists, and whatever becomes of that: nothing of the remote
// goes in the clear, or where the remote is permissive it is counted. The guard leaves out what no remote can have, as
// that would cut the node off. What the subnets file says of the remote is guarded, whatever the broker wants of it.
// closed says that an interface with the device's name is somebody else's. A guard that fails does not keep the device
// from being set, which protects more. The cluster's name must have passed plan.Cluster.
func (m *Monitor) Protect(cluster string, want *desired.Network, bounds plan.Bounds, closed bool) error {
	device := naming.Device(cluster)
	if bounds.Existing == nil {
		bounds.Existing = m.RoutedSubnets(cluster, nil)
	}
	r := guard.Remote{Device: device, Permissive: want.Device.GetPermissive(), Closed: closed}
	if own := bounds.Remote; own != nil {
		want = &desired.Network{Device: &semaphorev1.Device{PodSubnets: texts(own.Pods)}}
		r.Nodes, r.Port = own.Nodes, own.Port
	}
	subnets, _, _ := plan.Subnets(want, bounds)
	subnets = m.withHeld(cluster, subnets, bounds)
	if subnets == nil {
		subnets = []netip.Prefix{} // known, and nothing to guard
	}
	elsewhere, err := m.kernel.Elsewhere(device, subnets)
	if err != nil {
		slog.Warn("cannot see whether routes lead into the device already", "device", device, "error", err)
	}
	r.Subnets, r.RoutedElsewhere = subnets, elsewhere && !closed
	changed, err := m.guard.Set(cluster, r)
	if changed {
		slog.Info("guard set", "device", device, "subnets", subnets, "permissive", r.Permissive, "closed", r.Closed)
	}
	delete(m.kept, cluster) // what of it is desired is guarded now
	m.mu.Lock()
	defer m.mu.Unlock()
	m.permissive[cluster] = r.Permissive
	if !slices.Equal(m.subnets[cluster], subnets) || m.subnets[cluster] == nil {
		m.subnets[cluster] = subnets
		m.work.Routes, m.work.Settings = true, true
	}
	m.guarded(err)
	if errors.Is(err, guard.ErrNoNFTables) {
		return nil // reported, and no reason to keep pods off the node for good: the unreachable routes stay
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

// Removed is called when the device to a cluster is removed at the broker's word. As long as the subnets file names the
// remote, the guard stays: a broker that is taken over must not have packets leave in the clear.
func (m *Monitor) Removed(cluster string) {
	stays := m.stays(cluster)
	m.mu.Lock()
	declares := m.declared.subnets != nil
	_, named := m.declared.remote(cluster)
	m.work.Remotes = m.work.Remotes || declares // the guard no longer has the device to let packets into
	if !declares {
		m.remotes = maps.Clone(m.remotes)
		delete(m.remotes, cluster)
	}
	m.mu.Unlock()
	if declares && named {
		slog.Warn("the broker has taken out a remote that the subnets file names: packets to its pods are stopped",
			"remote", cluster)
		return
	}
	if len(stays) > 0 {
		return // the broker's list of remotes still names it, or its state is not whole: guardUndeclared decides
	}
	m.unprotect(cluster)
}

// Forget drops what an earlier agent guarded for a cluster whose device was removed.
func (m *Monitor) Forget(cluster string) { delete(m.kept, cluster) }

// unprotect removes the guard of a remote that is gone for good.
func (m *Monitor) unprotect(cluster string) {
	_, err := m.guard.Remove(cluster)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.subnets, cluster)
	delete(m.permissive, cluster)
	m.work.Routes, m.work.Settings = true, true
	m.guarded(err)
}

// guarded takes the result of the last change of the guard. It is called with mu held.
func (m *Monitor) guarded(err error) {
	var now []string
	if err != nil {
		now = []string{err.Error()}
	}
	if !slices.Equal(now, m.problems.guard) {
		m.problems.guard = now
		m.publish()
	}
}

// checkGuard sets the guard right where somebody changed it.
func (m *Monitor) checkGuard() error {
	known := m.session.Current() && len(m.board.Get().Orphans) == 0
	changed, err := m.guard.Restore()
	if changed {
		slog.Warn("the guard had been changed and was set right")
	}
	if known {
		err = errors.Join(err, m.guard.Sweep())
	}
	return err
}
