package guard

import (
	"errors"
	"maps"
	"reflect"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/internal/bounds"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/volume"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// remote returns the subnets file's statement about a remote. named is false if the file exists and does not name the
// remote; without a file the broker alone names remotes. It must be called with mu held.
func (m *Monitor) remote(cluster string) (r *plan.Remote, named bool) {
	if m.declared == nil {
		return nil, true
	}
	s, named := m.declared.Remotes[cluster]
	if !named {
		s, named = m.declared.Blocked[cluster]
	}
	return &plan.Remote{Pods: s.PodPrefixes, Nodes: s.NodePrefixes, Port: int(s.WireGuard.ListenPort)}, named
}

// LoadSubnets reads the subnets file at start. before is Declared of an earlier agent: an unusable part of the file has
// its form from there. No file ends the agent, which would leave the node without a guard.
func (m *Monitor) LoadSubnets(before string) {
	if m.cfg.SubnetsFile == "" || m.cfg.SubnetsFile == config.NoSubnets {
		return
	}
	s := m.readSubnets(bounds.ReadText(before, m.cfg.Cluster))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.declare(s)
}

func (m *Monitor) readSubnets(before *bounds.Subnets) *bounds.Subnets {
	return bounds.LoadSubnets(volume.ReadFile, m.cfg.SubnetsFile, m.cfg.Cluster, before)
}

// Declared returns the part of the subnets file in use, for a later agent; empty if unknown.
func (m *Monitor) Declared() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.declared; s != nil && s.Known {
		return s.Text()
	}
	return ""
}

// ReloadSubnets reads the subnets file again, if there is one, and reports whether it changed. An element that cannot
// be used changes nothing.
func (m *Monitor) ReloadSubnets() bool {
	m.mu.Lock()
	before := m.declared // only this goroutine sets it
	m.mu.Unlock()
	if before == nil {
		return false
	}
	s := m.readSubnets(before)
	m.mu.Lock()
	defer m.mu.Unlock()
	had := *before
	had.Problems = s.Problems
	if reflect.DeepEqual(s, &had) {
		m.declared = s
		m.publish()
		return false
	}
	m.events.Emit(events.Event{Cluster: m.cfg.Cluster, Object: "subnets file", Action: "apply"}.
		Info("subnets file has changed", "file", m.cfg.SubnetsFile, "remotes", slices.Sorted(maps.Keys(s.Remotes))))
	m.declare(s)
	return true
}

// declare makes the remotes of the file guarded. It must be called with mu held.
func (m *Monitor) declare(s *bounds.Subnets) {
	m.declared = s
	m.remotes = map[string]*semaphorev1.GuardedRemote{}
	for _, of := range []map[string]config.Remote{s.Blocked, s.Remotes} {
		for name, r := range of {
			m.remotes[name] = &semaphorev1.GuardedRemote{
				Cluster: name, PodSubnets: r.PodSubnets, Permissive: r.Encryption.Passes(),
			}
		}
	}
	m.node.Guarded = false
	m.publish()
	m.work.Remotes = true
}

func (m *Monitor) declares() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.declared != nil
}

// Within returns the bounds with those of a remote by the subnets file. It fails if that exists and does not name the
// remote.
func (m *Monitor) Within(bounds plan.Bounds, cluster string) (plan.Bounds, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var named bool
	if bounds.Remote, named = m.remote(cluster); !named {
		return bounds, errors.New("the subnets file names no such remote, and the broker alone cannot add one: " +
			m.cfg.SubnetsFile)
	}
	return bounds, nil
}

// Blocked returns an error if no device may be set for a remote that is guarded nevertheless, because the subnets file
// names it in a form that cannot be used.
func (m *Monitor) Blocked(cluster string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.declared; s != nil {
		if _, blocked := s.Blocked[cluster]; blocked {
			return errors.New("the subnets file names the remote in a form that cannot be used: " + m.cfg.SubnetsFile)
		}
	}
	return nil
}

// Strictly returns the device that the broker desires, but strict unless the subnets file is permissive too.
func (m *Monitor) Strictly(d *semaphorev1.Device) *semaphorev1.Device {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.declared
	if s == nil || !d.GetPermissive() || s.Remotes[d.GetCluster()].Encryption.Passes() {
		return d
	}
	d = proto.CloneOf(d)
	d.Permissive, d.Clear = false, false
	return d
}
