//go:build ignore

package agent

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-semaphore/semaphore/agent/desired"
	"github.com/kube-semaphore/semaphore/agent/guard"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/wireguard"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// configured is what is known of the remotes that the broker's configuration names, whether it knows their nodes or not.
// It is guarded by the agent's mu.
type configured struct {
	// remotes are by cluster. They are those of the subnets file; without it those of the last broker that named them, or of the state file.
	remotes map[string]*semaphorev1.GuardedRemote
	// heard says that this stream's broker has named them, and guarded that each of them is guarded on the node.
	heard, guarded bool
	// tried is when they were last guarded, or could not be.
	tried time.Time
}

// toGuard takes the broker's word of all configured remotes. It is called with mu held.
func (a *agent) toGuard(m *semaphorev1.Guard) {
	named := map[string]*semaphorev1.GuardedRemote{}
	for _, r := range m.GetRemotes() {
		if err := plan.Cluster(r.GetCluster()); err != nil {
			slog.Warn("the broker wants a remote guarded that cannot be one", "error", err)
			continue
		}
		named[r.GetCluster()] = r
	}
	if a.declared.subnets != nil {
		for cluster := range named {
			if _, ok := a.remote(cluster); !ok {
				slog.Warn("the broker wants a remote guarded that the subnets file does not name; it is not", "remote", cluster)
			}
		}
		named = a.configured.remotes
	}
	a.configured = configured{remotes: named, heard: true, tried: a.configured.tried}
	a.dirty.guard = true
	a.cache.Changed()
}

// guardConfigured guards those configured remotes of which nothing more is known yet. Those whose device is wanted are
// guarded with the device.
func (a *agent) guardConfigured() {
	a.mu.Lock()
	todo := map[string]*semaphorev1.GuardedRemote{}
	for cluster, r := range a.configured.remotes {
		if a.state.Network(cluster) == nil {
			todo[cluster] = r
		}
	}
	a.mu.Unlock()
	bounds, _, failed := a.bounds()
	for _, cluster := range slices.Sorted(maps.Keys(todo)) {
		r := todo[cluster]
		ours, err := a.interfaceIsOurs(cluster)
		want := &semaphorev1.Device{Cluster: cluster, PodSubnets: r.GetPodSubnets(), Permissive: r.GetPermissive()}
		bounds, unnamed := a.within(bounds, cluster)
		if unnamed != nil {
			continue // it has just been taken out of the subnets file
		}
		failed = errors.Join(failed, err, a.protect(cluster, &desired.Network{Device: want}, bounds, !ours))
	}
	failed = errors.Join(failed, a.forgetUndeclared())
	a.mu.Lock()
	defer a.mu.Unlock()
	a.configured.tried = time.Now()
	whole := failed == nil
	for cluster := range a.configured.remotes {
		whole = whole && a.around.subnets[cluster] != nil // a device that could not be looked at is not guarded either
	}
	if !whole {
		a.dirty.guard = true
		return
	}
	if a.configured.guarded = a.configured.heard; len(todo) > 0 {
		a.cache.Changed()
	}
}

// interfaceIsOurs says whether nobody else has an interface of the name of the device to a cluster, but for semaphore-wireguard, which
// encrypts what passes by it.
func (a *agent) interfaceIsOurs(cluster string) (bool, error) {
	links, err := wireguard.Links()
	if err != nil {
		return true, err
	}
	name := naming.Device(cluster)
	i := slices.IndexFunc(links, func(l wireguard.Link) bool { return l.Name == name })
	if i < 0 || links[i].Alias == naming.DeviceAlias(cluster) {
		return true, nil
	}
	stands, err := a.host.Device(name)
	return err == nil && (stands == nil || plan.OwnerOf(cluster, stands) != plan.SomeoneElses), nil
}

// guarding is what is guarded, of remotes that are known whole and of others, for a later agent and for a boot: without what
// this node's bounds refused, of which a boot knows nothing. It is called with mu held.
func (a *agent) guarding() []*semaphorev1.GuardedRemote {
	var out []*semaphorev1.GuardedRemote
	for _, cluster := range slices.Sorted(maps.Keys(a.around.subnets)) {
		r := &semaphorev1.GuardedRemote{Cluster: cluster, Permissive: a.configured.remotes[cluster].GetPermissive()}
		if n := a.state.Network(cluster); n != nil {
			r.Permissive = n.Device.GetPermissive()
		}
		for _, subnet := range a.around.subnets[cluster] {
			r.PodSubnets = append(r.PodSubnets, subnet.String())
		}
		out = append(out, r)
	}
	return out
}

// protect has nothing of a remote go in the clear, or where the remote is permissive has it counted, before there is a
// device and whatever becomes of it. What can be no remote's is not protected: that would cut the node off from what it is.
// A guard that fails holds no device back, which is the better part of it. closed says that an interface of the device's name
// is someone else's. What the node's own configuration says of the remote is protected, whatever the broker wants of it. The cluster's name must
// have passed plan.Cluster.
func (a *agent) protect(cluster string, want *desired.Network, bounds plan.Bounds, closed bool) error {
	device := naming.Device(cluster)
	if bounds.Standing == nil {
		bounds.Standing = a.standingSubnets(cluster, nil)
	}
	r := guard.Remote{Device: device, Permissive: want.Device.GetPermissive(), Closed: closed}
	if own := bounds.Remote; own != nil {
		want = &desired.Network{Device: &semaphorev1.Device{PodSubnets: texts(own.Pods)}}
		r.Nodes, r.Port = own.Nodes, own.Port
	}
	subnets, _, _ := plan.Subnets(want, bounds)
	if subnets == nil {
		subnets = []netip.Prefix{} // known, and nothing to guard
	}
	elsewhere, err := a.host.Elsewhere(device, subnets)
	if err != nil {
		slog.Warn("cannot see whether routes lead into the device already", "device", device, "error", err)
	}
	r.Subnets, r.Elsewhere = subnets, elsewhere && !closed
	changed, err := a.guard.Set(cluster, r)
	if changed {
		slog.Info("guard set", "device", device, "subnets", subnets, "permissive", r.Permissive, "closed", r.Closed)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Equal(a.around.subnets[cluster], subnets) || a.around.subnets[cluster] == nil {
		a.around.subnets[cluster] = subnets
		a.dirty.node.routes, a.dirty.node.settings = true, true
	}
	a.guarded(err)
	delete(a.kept, cluster) // what of it is wanted is guarded now
	if errors.Is(err, guard.ErrNoNFTables) {
		return nil // told, and no reason to keep pods off the node for good: the unreachable routes stand
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
