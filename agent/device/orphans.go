//go:build ignore

package agent

import (
	"log/slog"
	"strings"

	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/wireguard"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// unsaid is the problem of an orphan, and deviceless that of one of which nothing but the guard is left.
const (
	unsaid     = "the broker says nothing of this cluster, whose device is left as it stands"
	deviceless = "the broker says nothing of this cluster, whose device has gone; packets to it are stopped"
)

// lookForOrphans finds devices of ours of which the broker says nothing, or not yet: those of an earlier
// agent. Only those with our alias count: another's, such as semaphore-wireguard's, is none of the broker's
// business before it names the cluster. An orphan is told, and goes only at the broker's word, or an operator's.
func (a *agent) lookForOrphans() {
	links, err := wireguard.Links()
	if err != nil {
		slog.Warn("cannot look for devices that an earlier agent has left", "error", err)
		return
	}
	found := map[string]*semaphorev1.DeviceReport{}
	for _, l := range links {
		cluster, ok := strings.CutPrefix(l.Alias, naming.DeviceAlias(""))
		if !ok || plan.Cluster(cluster) != nil || naming.Device(cluster) != l.Name || a.wants(cluster) {
			continue
		}
		r := &semaphorev1.DeviceReport{Cluster: cluster, Interface: l.Name}
		found[cluster] = r
		stands, err := a.host.Device(l.Name)
		if err != nil {
			r.Problem = tellable(err.Error())
			continue
		}
		if stands == nil {
			delete(found, cluster)
			continue
		}
		describeReport(r, stands)
		// The broker publishes the key: only one that will still be there after the next reboot.
		if key, err := wireguard.ReadKey(a.cfg.WGKeyPath, l.Name); err != nil {
			r.PublicKey, r.Problem = nil, tellable(err.Error())
		} else if key != stands.PrivateKey {
			r.PublicKey, r.Problem = nil, "its private key is not the one in its key file"
		}
	}
	// A remote whose device someone has deleted, and that was taken out while no agent ran, has left its guard.
	for _, cluster := range a.guard.Clusters() {
		if found[cluster] == nil && plan.Cluster(cluster) == nil && !a.wants(cluster) && !a.isConfigured(cluster) {
			found[cluster] = &semaphorev1.DeviceReport{Cluster: cluster, Interface: naming.Device(cluster), Problem: deviceless}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.orphans = found
}

// wants says whether the broker wants the device to cluster.
func (a *agent) wants(cluster string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state.Network(cluster) != nil
}

// isConfigured says whether the broker's configuration names a remote, as far as is known.
func (a *agent) isConfigured(cluster string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.configured.remotes[cluster] != nil
}

// orphan is the report of one. Before the broker has spoken there is nothing to say against it. It is called with
// mu held.
func (a *agent) orphan(cluster string) *semaphorev1.DeviceReport {
	r := a.orphans[cluster]
	if r.GetProblem() == "" && a.state.Current() {
		r = cloneReport(r)
		r.Problem = unsaid
	}
	return r
}
