package guard

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Where remotes are RemoteClusters, the exporter writes the subnets file's part of them. So the file alone ends no
// guard, and neither does the broker alone: a subnet that this node guards is retained until neither names it.

// retained returns the subnets of a remote that remain guarded whatever the subnets file states now: guarded ones that
// the broker desires, and all guarded ones while the broker has not sent its desired state. The broker adds none.
func (m *Monitor) retained(cluster string) []netip.Prefix {
	guarded, listens := m.guard.Subnets(cluster), m.session.Listens()
	device := m.session.Device(cluster)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.declared == nil || m.subnets[cluster] == nil && m.earlier[cluster] == nil {
		return nil
	}
	all := slices.Concat(guarded, m.earlier[cluster])
	if !listens || !m.spoken {
		return widest(all)
	}
	wanted := parsed(slices.Concat(device.GetPodSubnets(), m.listed[cluster].GetPodSubnets()))
	var both []netip.Prefix
	for _, h := range all {
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

// withRetained adds the retained subnets of a remote to those of the subnets file, and reports them. bounds are the
// remote's.
func (m *Monitor) withRetained(cluster string, subnets []netip.Prefix, bounds plan.Bounds) []netip.Prefix {
	var more []netip.Prefix
	if own := bounds.Remote; own != nil {
		rest := slices.DeleteFunc(m.retained(cluster), func(p netip.Prefix) bool { return plan.Inside(p, own.Pods) })
		bounds.Remote = nil
		more, _, _ = plan.Subnets(texts(rest), bounds)
		m.reportRetained(cluster, more, true)
	}
	if len(more) == 0 {
		return subnets
	}
	return widest(append(more, subnets...))
}

// guardUndeclared retains the guard of remotes that the subnets file does not name. It removes the guard of those that
// the broker does not name either and that have no device.
func (m *Monitor) guardUndeclared(bounds plan.Bounds) (failed []error) {
	for _, cluster := range m.undeclared() {
		if retained := m.retained(cluster); len(retained) > 0 {
			failed = append(failed, m.retain(cluster, retained, bounds))
			continue
		}
		m.reportRetained(cluster, nil, false)
		if m.session.Device(cluster) != nil {
			continue
		}
		d, err := m.kernel.Device(naming.Device(cluster))
		if err == nil && d == nil {
			slog.Info("removing the guard of a remote that neither the configuration nor the broker names and that has no "+
				"device", "remote", cluster)
			m.unprotect(cluster)
			m.changed()
		}
		failed = append(failed, err)
	}
	return failed
}

// undeclared returns the clusters that are or were guarded and that the subnets file does not name; none without a
// file.
func (m *Monitor) undeclared() []string {
	clusters := slices.Concat(m.guard.Clusters(), slices.Collect(maps.Keys(m.earlier)))
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.declared == nil {
		return nil
	}
	clusters = slices.AppendSeq(clusters, maps.Keys(m.subnets))
	slices.Sort(clusters)
	return slices.DeleteFunc(slices.Compact(clusters), func(cluster string) bool {
		_, named := m.remote(cluster)
		return named || plan.Cluster(cluster) != nil
	})
}

// retain guards a remote that the subnets file does not name. A correct guard remains unchanged: its rules also bound
// the device's own packets, with addresses that only the file had.
func (m *Monitor) retain(cluster string, subnets []netip.Prefix, bounds plan.Bounds) error {
	m.reportRetained(cluster, subnets, false)
	if have := m.guard.Subnets(cluster); len(have) > 0 && slices.Equal(widest(have), subnets) {
		delete(m.earlier, cluster)
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
	want := &semaphorev1.Device{Cluster: cluster, PodSubnets: texts(subnets)}
	return m.Protect(cluster, want, bounds, !ours)
}

// mayPassInTheClear reports whether packets of a remote without a desired device may leave in the clear: the subnets
// file and the broker must both open a guard, for the file's writer alone would decide for the broker. On a node that
// has not guarded the remote yet, the file decides until the broker has named its remotes: a new agent must not stop
// packets that are in the clear today.
func (m *Monitor) mayPassInTheClear(r *semaphorev1.GuardedRemote) bool {
	cluster := r.GetCluster()
	guarded := len(m.guard.Subnets(cluster)) > 0
	m.mu.Lock()
	defer m.mu.Unlock()
	listed := m.listed[cluster]
	switch {
	case !r.GetPermissive():
		return false
	case m.declared == nil: // no file: the broker alone decides
		return true
	case listed != nil:
		return listed.GetPermissive()
	case m.node.Heard: // the broker named its remotes, and not this one
		return false
	}
	return m.permissive[cluster] || !guarded && m.earlier[cluster] == nil // no broker yet: stop nothing that flows
}

// Spoken takes that the session has the whole of a broker's state: it decides about remotes that the file does not
// name.
func (m *Monitor) Spoken() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.spoken = true
	m.work.Remotes = m.work.Remotes || len(m.problems.retained) > 0
}

// Retained returns the clusters with more guarded subnets than the subnets file names.
func (m *Monitor) Retained() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.problems.retained))
}

// reportRetained reports which guarded subnets the subnets file does not name; none ends the report. named means that
// the file names the remote.
func (m *Monitor) reportRetained(cluster string, subnets []netip.Prefix, named bool) {
	line := ""
	if len(subnets) > 0 {
		what := "does not name remote " + cluster
		if named {
			what = "names fewer podSubnets of remote " + cluster
		}
		line = fmt.Sprintf("the subnets file %s %s, and the broker has not said that %v is removed: the guard stays, and "+
			"the device gets no changes outside of the file. Add it again: to the ConfigMap semaphore-remotes, which the "+
			"exporter writes for RemoteClusters, or to semaphore-subnets. To remove the remote, remove it from the broker too",
			m.cfg.SubnetsFile, what, subnets)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.problems.retained[cluster] == line {
		return
	}
	if m.problems.retained[cluster] = line; line == "" {
		delete(m.problems.retained, cluster)
	}
	m.publish()
}

// parsed parses texts, and ignores those that are not prefixes.
func parsed(texts []string) (out []netip.Prefix) {
	for _, text := range texts {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			out = append(out, prefix)
		}
	}
	return out
}
