package agent

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/agent/desired"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/sysctl"
	"github.com/kube-semaphore/semaphore/agent/wireguard"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// permissiveKeepalive has the nodes of a permissive remote shake hands without any traffic, and again and again until both know
	// each other.
	permissiveKeepalive = 25 * time.Second
	// filtersEvery is how often the filters of reverse paths are read while a remote is permissive.
	filtersEvery = 5 * time.Second
	// drainTime is how long a peer stays when no route leads to it any more: packets on their way through the device are encrypted for it.
	drainTime = 200 * time.Millisecond
)

// permissive is what is known of one permissive remote.
type permissive struct {
	// heard belongs to program's goroutine, which alone writes the rest, under the agent's mu.
	heard plan.Heard
	// hold is why nobody new is sent to through the tunnel, if so, as of heldAt.
	hold   string
	heldAt time.Time
	// waiting is how many peers are not sent to through the tunnel.
	waiting int
}

// knocking is the device to a permissive remote with a keepalive, and any other as it is.
func knocking(d *semaphorev1.Device) *semaphorev1.Device {
	if !d.GetPermissive() || d.GetPersistentKeepalive().AsDuration() > 0 {
		return d
	}
	d = proto.Clone(d).(*semaphorev1.Device)
	d.PersistentKeepalive = durationpb.New(permissiveKeepalive)
	return d
}

// hear decides to which nodes of a permissive remote packets go through the tunnel, none while it is clear; nil for one that is strict. peers are those of the
// device as it stands, and nodes names the node of a key.
func (a *agent) hear(cluster string, want *desired.Network, peers []wgtypes.Peer, nodes func(wgtypes.Key) (string, bool)) map[string]bool {
	a.mu.Lock()
	p := a.permissive[cluster]
	switch {
	case !want.Device.GetPermissive():
		delete(a.permissive, cluster)
		a.mu.Unlock()
		return nil
	case p == nil:
		p = &permissive{}
		a.permissive[cluster] = p
	}
	a.mu.Unlock()
	now := time.Now()
	if now.Sub(p.heldAt) >= filtersEvery {
		hold := a.strictFilters(cluster, want)
		if hold != p.hold && hold != "" {
			slog.Warn("packets to a permissive remote stay in the clear", "device", naming.Device(cluster), "problem", hold)
		}
		a.mu.Lock()
		p.hold, p.heldAt = hold, now
		a.mu.Unlock()
	}
	heard := p.heard.Look(now, peers, want.Peers, nodes, a.paths.silent(cluster), p.hold != "")
	if want.Device.GetClear() {
		heard = map[string]bool{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if waiting := len(want.Peers) - len(heard); waiting != p.waiting {
		a.recorder.Record(debug.Event{Source: cluster, Object: "device " + naming.Device(cluster), Action: "hear",
			Detail: fmt.Sprintf("%d of %d peers are sent to through the tunnel", len(heard), len(want.Peers))})
		p.waiting = waiting
	}
	return heard
}

// takesEarly says that a device is to take packets of IPv4 out of its tunnel before routes lead into it.
func takesEarly(d *semaphorev1.Device) bool {
	return d.GetPermissive() && slices.ContainsFunc(d.GetPodSubnets(), func(text string) bool {
		p, err := netip.ParsePrefix(text)
		return err == nil && p.Addr().Is4()
	})
}

// strictFilters says what would drop packets that the remote still sends in the clear once this node's lead into the tunnel; empty for
// nothing.
func (a *agent) strictFilters(cluster string, want *desired.Network) string {
	if !takesEarly(want.Device) {
		return "" // the kernel has no such filter for IPv6
	}
	ways, err := wireguard.Ways(endpoints(want.Peers))
	if err != nil {
		return err.Error()
	}
	links := map[string]bool{}
	for _, w := range ways {
		links[w.Link] = true
	}
	strict, err := sysctl.StrictFilters(slices.Sorted(maps.Keys(links)))
	if err != nil {
		return err.Error()
	}
	if len(strict) == 0 {
		return ""
	}
	return fmt.Sprintf("rp_filter is strict on %[1]s: packets that %[2]s still sends in the clear would be dropped once this node sends through the tunnel, "+
		"so it does not; set net/ipv4/conf/%[1]s/rp_filter to 2", strict[0], cluster)
}

// nodesByKey names the nodes of a network's peers by their keys.
func nodesByKey(want *desired.Network) func(wgtypes.Key) (string, bool) {
	names := make(map[string]string, len(want.Peers))
	for _, node := range slices.Backward(slices.Sorted(maps.Keys(want.Peers))) { // of two with one key, the first
		names[string(want.Peers[node].GetWireguard().GetPublicKey())] = node
	}
	return func(key wgtypes.Key) (string, bool) {
		node, ok := names[string(key[:])]
		return node, ok
	}
}

// reportClear adds to a report of a device what passes in the clear. It is called with mu held.
func (a *agent) reportClear(r *semaphorev1.DeviceReport) {
	p := a.permissive[r.GetCluster()]
	if p == nil {
		return
	}
	c := a.around.counts[r.GetCluster()]
	r.Permissive, r.ClearOut, r.ClearIn, r.PeersClear = true, c.PassedOut, c.PassedIn, uint32(max(0, p.waiting))
	r.LastClear = timestampOf(a.around.lastClear[r.GetCluster()])
	if p.hold != "" {
		r.Problem = tellable(withProblem(r.GetProblem(), fmt.Errorf("%s", p.hold)))
	}
}
