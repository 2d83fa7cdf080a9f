package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// declaredEvery is how often the subnets file is read. A kubelet replaces it within a minute or two.
const declaredEvery = 5 * time.Second

// declared is what the node's own configuration says of the own cluster and of the remotes: what bounds the broker's word does not come
// from the broker. It is guarded by the agent's mu.
type declared struct {
	// subnets are nil where there is no such file.
	subnets *config.Subnets
	// problem is why the file as it is now is not used, and the one before is.
	problem string
}

// loadDeclared reads the subnets file for the first time, without which no agent starts: it would have no bounds.
func (a *agent) loadDeclared() error {
	if a.cfg.SubnetsFile == "" || a.cfg.SubnetsFile == config.NoSubnets {
		return nil
	}
	s, err := config.LoadSubnets(a.cfg.SubnetsFile, a.cfg.Cluster)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.declare(s)
	return nil
}

// watchDeclared follows the subnets file until ctx ends. What cannot be used changes nothing.
func (a *agent) watchDeclared(ctx context.Context) error {
	if a.declared.subnets == nil { // it is set before this runs, or never
		return nil
	}
	tick := time.NewTicker(declaredEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		s, err := config.LoadSubnets(a.cfg.SubnetsFile, a.cfg.Cluster)
		a.mu.Lock()
		a.redeclare(s, err)
		a.mu.Unlock()
	}
}

// redeclare takes the subnets file as it is now. It is called with mu held.
func (a *agent) redeclare(s *config.Subnets, err error) {
	problem := ""
	if err != nil {
		problem = err.Error() + "; the one before it is used"
	}
	if problem != a.declared.problem {
		a.declared.problem = problem
		a.tellNode()
	}
	if err != nil || reflect.DeepEqual(s, a.declared.subnets) {
		return
	}
	slog.Info("subnets file has changed", "file", a.cfg.SubnetsFile, "remotes", slices.Sorted(maps.Keys(s.Remotes)))
	a.recorder.Record(debug.Event{Source: a.cfg.Cluster, Object: "subnets file", Action: "apply"})
	a.declare(s)
	for _, cluster := range slices.Concat(a.state.Clusters(), slices.Collect(maps.Keys(a.networks))) {
		a.dirty.networks[cluster] = true
	}
	a.cache.Changed()
	a.poke()
}

// declare has the remotes of the file guarded. It is called with mu held.
func (a *agent) declare(s *config.Subnets) {
	a.declared.subnets = s
	a.configured.remotes = map[string]*semaphorev1.GuardedRemote{}
	for name, r := range s.Remotes {
		a.configured.remotes[name] = &semaphorev1.GuardedRemote{
			Cluster: name, PodSubnets: r.PodSubnets, Permissive: r.Encryption.Passes(),
		}
	}
	a.configured.guarded = false
	a.dirty.guard = true
}

// declares says whether the node's configuration names the remotes.
func (a *agent) declares() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.declared.subnets != nil
}

// remote is what the node's configuration says of a remote. named is false where it says that there is no such remote; a configuration that names
// none leaves that to the broker. It is called with mu held.
func (a *agent) remote(cluster string) (r *plan.Remote, named bool) {
	if a.declared.subnets == nil {
		return nil, true
	}
	d, named := a.declared.subnets.Remotes[cluster]
	return &plan.Remote{Pods: d.PodPrefixes, Nodes: d.NodePrefixes, Port: int(d.WireGuard.ListenPort)}, named
}

// within adds to what bounds all remotes what bounds one.
func (a *agent) within(bounds plan.Bounds, cluster string) (plan.Bounds, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var named bool
	if bounds.Remote, named = a.remote(cluster); !named {
		return bounds, errors.New("the subnets file names no such remote, and the broker's word alone makes none: " + a.cfg.SubnetsFile)
	}
	return bounds, nil
}

// strictly is the device that the broker wants, but strict where the node's configuration does not say permissive, too. It is called with mu
// held.
func (a *agent) strictly(d *semaphorev1.Device) *semaphorev1.Device {
	if a.declared.subnets == nil || !d.GetPermissive() || a.declared.subnets.Remotes[d.GetCluster()].Encryption.Passes() {
		return d
	}
	d = proto.CloneOf(d)
	d.Permissive, d.Clear = false, false
	return d
}

// forgetUndeclared has nothing guarded any more of what neither the node's configuration names nor the broker wants, and to which no device
// leads.
func (a *agent) forgetUndeclared() error {
	if !a.declares() {
		return nil
	}
	var failed []error
	for _, cluster := range a.guard.Clusters() {
		a.mu.Lock()
		_, named := a.remote(cluster)
		kept := named || a.state.Network(cluster) != nil
		a.mu.Unlock()
		if kept || plan.Cluster(cluster) != nil {
			continue
		}
		stands, err := a.host.Device(naming.Device(cluster))
		if err == nil && stands == nil {
			slog.Info("the configuration names this remote no more, and its device has gone: nothing of it is guarded", "remote", cluster)
			a.unprotect(cluster)
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// declaredProblems is what is wrong with the subnets file, and what the broker does not want of it. It is called with mu held.
func (a *agent) declaredProblems() []string {
	if a.declared.problem == "" {
		return nil
	}
	return []string{a.declared.problem}
}
