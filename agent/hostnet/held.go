package hostnet

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-semaphore/semaphore/agent/cache"
	"github.com/kube-semaphore/semaphore/agent/desired"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Where remotes are RemoteClusters, the exporter writes what the subnets file says of them. So the file alone ends no
// guard, as the broker alone ends none: a subnet that this node guards is held until neither names it.

// restoreHeld takes what an earlier agent guarded from its state file, or from the rules where that says nothing of
// guards. Rules besides a state file that does not name them are of the boot unit, at the broker's word alone. It is
// called before there is a stream.
func (m *Monitor) restoreHeld(c *cache.Contents) {
	m.listed = map[string]*semaphorev1.GuardedRemote{}
	if c != nil {
		for _, r := range c.Guarded() {
			m.listed[r.GetCluster()] = r
		}
		for _, r := range c.Guard { // an agent that kept no such list did not keep either what its bounds refused
			m.kept[r.GetCluster()] = append(m.kept[r.GetCluster()], prefixes(r.GetPodSubnets())...)
		}
		if len(c.Guard) > 0 {
			return
		}
	}
	if !m.Declares() {
		return
	}
	for _, cluster := range m.guard.Clusters() {
		m.kept[cluster] = m.guard.Subnets(cluster)
	}
}

// stays are the subnets of a remote that are guarded whatever the subnets file says now: those that are guarded and
// that the broker wants, and all that are guarded while it has not said what it wants. The broker adds none.
func (m *Monitor) stays(cluster string) []netip.Prefix {
	guarded, listens := m.guard.Subnets(cluster), m.session.Listens()
	device := m.session.Device(cluster)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.declared.subnets == nil || m.subnets[cluster] == nil && m.kept[cluster] == nil {
		return nil
	}
	held := slices.Concat(guarded, m.kept[cluster])
	if !listens || !m.spoken {
		return widest(held)
	}
	wanted := prefixes(slices.Concat(device.GetPodSubnets(), m.listed[cluster].GetPodSubnets()))
	var both []netip.Prefix
	for _, h := range held {
		for _, w := range wanted {
			switch {
			case plan.Inside(h, []netip.Prefix{w}):
				both = append(both, h)
			case plan.Inside(w, []netip.Prefix{h}):
				both = append(both, w)
			}
		}
	}
	return widest(both)
}

// withHeld adds what stays guarded to what the subnets file says of a remote, and reports it. bounds are those of the
// remote.
func (m *Monitor) withHeld(cluster string, subnets []netip.Prefix, bounds plan.Bounds) []netip.Prefix {
	var more []netip.Prefix
	if own := bounds.Remote; own != nil {
		stays := slices.DeleteFunc(m.stays(cluster), func(p netip.Prefix) bool { return plan.Inside(p, own.Pods) })
		bounds.Remote = nil
		more, _, _ = plan.Subnets(&desired.Network{Device: &semaphorev1.Device{PodSubnets: texts(stays)}}, bounds)
		m.reportHeld(cluster, more, true)
	}
	if len(more) == 0 {
		return subnets
	}
	return widest(append(more, subnets...))
}

// guardUndeclared keeps the guard of remotes that the subnets file does not name, and removes it of those that the
// broker does not want either, and to which no device leads.
func (m *Monitor) guardUndeclared(bounds plan.Bounds) (failed []error) {
	for _, cluster := range m.undeclared() {
		if stays := m.stays(cluster); len(stays) > 0 {
			failed = append(failed, m.hold(cluster, stays, bounds))
			continue
		}
		m.reportHeld(cluster, nil, false)
		if m.session.Device(cluster) != nil {
			continue
		}
		d, err := m.kernel.Device(naming.Device(cluster))
		if err == nil && d == nil {
			slog.Info("neither the configuration nor the broker names this remote, and its device has gone: nothing of it is "+
				"guarded", "remote", cluster)
			m.unprotect(cluster)
			m.changed()
		}
		failed = append(failed, err)
	}
	return failed
}

// undeclared are the clusters that are guarded, or were, and that the subnets file does not name; none without a file.
func (m *Monitor) undeclared() []string {
	clusters := slices.Concat(m.guard.Clusters(), slices.Collect(maps.Keys(m.kept)))
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.declared.subnets == nil {
		return nil
	}
	clusters = slices.AppendSeq(clusters, maps.Keys(m.subnets))
	slices.Sort(clusters)
	return slices.DeleteFunc(slices.Compact(clusters), func(cluster string) bool {
		_, named := m.declared.remote(cluster)
		return named || plan.Cluster(cluster) != nil
	})
}

// hold guards a remote that the subnets file does not name. A guard that is as it should be is left alone: its rules
// also bound the device's own packets, by what only the file said.
func (m *Monitor) hold(cluster string, stays []netip.Prefix, bounds plan.Bounds) error {
	m.reportHeld(cluster, stays, false)
	if have := m.guard.Subnets(cluster); len(have) > 0 && slices.Equal(widest(have), stays) {
		delete(m.kept, cluster)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.subnets[cluster] == nil {
			m.subnets[cluster] = have
			m.work.Routes, m.work.Settings = true, true
		}
		return nil
	}
	ours, err := m.InterfaceIsOurs(cluster)
	if err != nil {
		return err
	}
	want := &semaphorev1.Device{Cluster: cluster, PodSubnets: texts(stays)}
	return m.Protect(cluster, &desired.Network{Device: want}, bounds, !ours)
}

// passes reports whether packets of a remote without a desired device pass. The subnets file alone opens no guard: its
// writer would decide for the broker. On a node that has not guarded the remote yet, the file decides until the broker
// has named its remotes: an agent that is new there must not stop what goes in the clear.
func (m *Monitor) passes(r *semaphorev1.GuardedRemote) bool {
	cluster := r.GetCluster()
	guarded := len(m.guard.Subnets(cluster)) > 0
	m.mu.Lock()
	defer m.mu.Unlock()
	if listed := m.listed[cluster]; m.declared.subnets != nil && (listed != nil || m.node.Heard) {
		return r.GetPermissive() && listed.GetPermissive()
	}
	held := guarded || m.kept[cluster] != nil
	return r.GetPermissive() && (m.declared.subnets == nil || m.permissive[cluster] || !held)
}

// Spoken is called at the end mark of a broker's state, when the session has it: what the file does not name is judged
// by it.
func (m *Monitor) Spoken() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.spoken = true
	m.work.Remotes = m.work.Remotes || len(m.problems.held) > 0
}

// Held are the clusters of which more is guarded than the subnets file names.
func (m *Monitor) Held() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.problems.held))
}

// reportHeld reports which subnets are guarded that the subnets file does not name; none for nothing. named says
// whether it names the remote.
func (m *Monitor) reportHeld(cluster string, subnets []netip.Prefix, named bool) {
	line := ""
	if len(subnets) > 0 {
		what := "does not name remote " + cluster
		if named {
			what = "names fewer podSubnets of remote " + cluster
		}
		line = fmt.Sprintf("the subnets file %s %s, and the broker has not said that %v is removed: the guard stays, and the "+
			"device gets no changes outside of the file. Add it again: to the ConfigMap semaphore-remotes, which the exporter "+
			"writes for RemoteClusters, or to semaphore-subnets. To remove the remote, remove it from the broker too",
			m.cfg.SubnetsFile, what, subnets)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.problems.held[cluster] == line {
		return
	}
	held := maps.Clone(m.problems.held)
	if held == nil {
		held = map[string]string{}
	}
	if held[cluster] = line; line == "" {
		delete(held, cluster)
	}
	m.problems.held = held
	m.publish()
}

// prefixes are those of texts that are such.
func prefixes(texts []string) (out []netip.Prefix) {
	for _, text := range texts {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			out = append(out, prefix)
		}
	}
	return out
}

// widest are the prefixes that no other one contains, sorted.
func widest(all []netip.Prefix) (out []netip.Prefix) {
	all = slices.SortedFunc(slices.Values(all), func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	for _, p := range all {
		if !plan.Inside(p, out) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out
}
