package device

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

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/status"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// keepalive makes the nodes of a permissive remote start handshakes without traffic, repeatedly, until both have a
	// session, and keeps the mapping of a NAT that nothing reaches from outside: 25 s is less than NATs forget after.
	keepalive = 25 * time.Second
	// filterInterval is the interval at which the reverse path filters of links to a permissive remote are read.
	filterInterval = 5 * time.Second
)

type permissive struct {
	heard plan.Heard
	// heldAt is when Hold of the device's status.Clear was last decided.
	heldAt time.Time
}

// withKeepalive returns the device to a permissive remote, or to one that this node calls, with a keepalive, and any
// other unchanged.
func withKeepalive(d *semaphorev1.Device, calls bool) *semaphorev1.Device {
	if !d.GetPermissive() && !calls || d.GetPersistentKeepalive().AsDuration() > 0 {
		return d
	}
	d = proto.CloneOf(d)
	d.PersistentKeepalive = durationpb.New(keepalive)
	return d
}

// nodesHeard decides to which nodes of a permissive remote packets go through the tunnel: to none while the remote is
// clear; nil for a strict one. peers are those of the device, and nodes names the node of a key.
func (r *Reconciler) nodesHeard(
	d *device, want *plan.Desired, peers []wgtypes.Peer, nodes plan.Wanted,
) map[string]bool {
	if !want.Device.GetPermissive() {
		d.permissive, d.Clear = nil, nil
		return nil
	}
	if d.permissive == nil {
		d.permissive, d.Clear = &permissive{}, &status.Clear{}
	}
	p, was, is := d.permissive, *d.Clear, *d.Clear
	now := time.Now()
	if now.Sub(p.heldAt) >= filterInterval {
		is.Hold, p.heldAt = r.strictFilters(d.cluster, want), now
		if is.Hold != was.Hold && is.Hold != "" {
			slog.Warn("packets to a permissive remote remain in the clear", "problem", is.Hold, "device", d.name)
		}
	}
	if err := r.loosenAgain(d.name, want.Device); err != nil {
		is.Hold = err.Error()
	}
	heard := p.heard.Update(now, peers, want.Peers, nodes, r.Peers.Silent(d.cluster), is.Hold != "")
	if want.Device.GetClear() {
		heard = map[string]bool{}
	}
	is.Peers = len(want.Peers) - len(heard)
	if is.Peers != was.Peers {
		r.Events.Emit(events.Device(d.cluster, "hear",
			fmt.Sprintf("%d of %d peers are sent to through the tunnel", len(heard), len(want.Peers))))
	}
	if is != was {
		d.Clear = &is
		r.publish(d)
	}
	return heard
}

// acceptsBeforeRoutes reports whether a device must accept IPv4 packets from its tunnel before routes lead into it.
func acceptsBeforeRoutes(d *semaphorev1.Device) bool {
	return d.GetPermissive() && slices.ContainsFunc(d.GetPodSubnets(), func(text string) bool {
		p, err := netip.ParsePrefix(text)
		return err == nil && p.Addr().Is4()
	})
}

// loosenAgain loosens the filter of an existing device to a permissive remote if another program made it strict, as
// systemd-sysctl does at udev's event of a new interface: the filter would drop what the remote sends through the
// tunnel.
func (r *Reconciler) loosenAgain(name string, want *semaphorev1.Device) error {
	if !acceptsBeforeRoutes(want) {
		return nil
	}
	strict, err := r.kernel.StrictFilters([]string{name})
	if err != nil || len(strict) == 0 {
		return err
	}
	slog.Warn("the reverse path filter of the device is strict; the agent loosens it", "device", name)
	return r.kernel.LoosenFilter(name)
}

// strictFilters returns the filters that would drop packets that the remote still sends in the clear after this node
// sends through the tunnel; empty for nothing.
func (r *Reconciler) strictFilters(cluster string, want *plan.Desired) string {
	if !acceptsBeforeRoutes(want.Device) {
		return "" // the kernel has no such filter for IPv6
	}
	egress, err := r.kernel.EgressLinks(plan.Addresses(want.Peers, plan.FewPeers))
	if err != nil {
		return err.Error()
	}
	links := map[string]bool{}
	for _, e := range egress {
		links[e.Link] = true
	}
	strict, err := r.kernel.StrictFilters(slices.Sorted(maps.Keys(links)))
	if err != nil {
		return err.Error()
	}
	if len(strict) == 0 {
		return ""
	}
	return fmt.Sprintf("rp_filter is strict on %[1]s: packets that %[2]s still sends in the clear would be dropped "+
		"once this node sends through the tunnel, so it does not; set net/ipv4/conf/%[1]s/rp_filter to 2", strict[0], cluster)
}
