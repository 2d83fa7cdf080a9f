package hostnet

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// declared is what the node's own configuration states about the own cluster and the remotes: what bounds the broker
// does not come from the broker.
type declared struct {
	// subnets is nil if there is no such file.
	subnets *config.Subnets
	// problem is why the current file cannot be used, and the previous one remains in use.
	problem string
}

// remote returns what the file states about a remote. named is false if the file exists and does not name the remote;
// without a file the broker alone names remotes.
func (d *declared) remote(cluster string) (r *plan.Remote, named bool) {
	if d.subnets == nil {
		return nil, true
	}
	s, named := d.subnets.Remotes[cluster]
	return &plan.Remote{Pods: s.PodPrefixes, Nodes: s.NodePrefixes, Port: int(s.WireGuard.ListenPort)}, named
}

func (d *declared) problems() []string {
	if d.problem == "" {
		return nil
	}
	return []string{d.problem}
}

// LoadSubnets reads the subnets file at start. Its error must end the agent, which would have no bounds.
func (m *Monitor) LoadSubnets() error {
	if m.cfg.SubnetsFile == "" || m.cfg.SubnetsFile == config.NoSubnets {
		return nil
	}
	s, err := config.LoadSubnets(m.cfg.SubnetsFile, m.cfg.Cluster)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.declare(s)
	return nil
}

// ReloadSubnets reads the subnets file again, if there is one, and reports whether it changed. A file that cannot be
// used changes nothing.
func (m *Monitor) ReloadSubnets() bool {
	if !m.declares() {
		return false
	}
	s, err := config.LoadSubnets(m.cfg.SubnetsFile, m.cfg.Cluster)
	m.mu.Lock()
	defer m.mu.Unlock()
	problem := ""
	if err == nil && s.Unnamed && !m.declared.subnets.Unnamed {
		// A lost ConfigMap is no operator's order.
		err = fmt.Errorf("subnetsFile %s names no remotes, and the file %s beside it is missing", m.cfg.SubnetsFile,
			config.RemotesFile)
	}
	if err != nil {
		problem = err.Error() + "; the previous one remains in use"
	}
	if problem != m.declared.problem {
		m.declared.problem = problem
		m.publish()
	}
	if err != nil || reflect.DeepEqual(s, m.declared.subnets) {
		return false
	}
	m.events.Emit(events.Event{Cluster: m.cfg.Cluster, Object: "subnets file", Action: "apply"}.
		Info("subnets file has changed", "file", m.cfg.SubnetsFile, "remotes", slices.Sorted(maps.Keys(s.Remotes))))
	m.declare(s)
	return true
}

// declare makes the remotes of the file guarded. It must be called with mu held.
func (m *Monitor) declare(s *config.Subnets) {
	m.declared.subnets = s
	m.remotes = map[string]*semaphorev1.GuardedRemote{}
	for name, r := range s.Remotes {
		m.remotes[name] = &semaphorev1.GuardedRemote{
			Cluster: name, PodSubnets: r.PodSubnets, Permissive: r.Encryption.Passes(),
		}
	}
	m.node.Guarded = false
	m.board.PutNode(m.node)
	m.work.Remotes = true
}

// declares reports whether there is a subnets file.
func (m *Monitor) declares() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.declared.subnets != nil
}

// Within adds the bounds of one remote to the bounds of all.
func (m *Monitor) Within(bounds plan.Bounds, cluster string) (plan.Bounds, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var named bool
	if bounds.Remote, named = m.declared.remote(cluster); !named {
		return bounds, errors.New("the subnets file names no such remote, and the broker alone cannot add one: " +
			m.cfg.SubnetsFile)
	}
	return bounds, nil
}

// Strictly returns the device that the broker desires, but strict unless the subnets file is permissive too.
func (m *Monitor) Strictly(d *semaphorev1.Device) *semaphorev1.Device {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.declared.subnets
	if s == nil || !d.GetPermissive() || s.Remotes[d.GetCluster()].Encryption.Passes() {
		return d
	}
	d = proto.CloneOf(d)
	d.Permissive, d.Clear = false, false
	return d
}
