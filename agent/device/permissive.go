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

	"github.com/kube-semaphore/semaphore/agent/desired"
	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/plan"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// permissiveKeepalive has the nodes of a permissive remote start handshakes without any traffic, and again and
	// again until both know each other.
	permissiveKeepalive = 25 * time.Second
	// filterInterval is how often the filters of reverse paths are read while a remote is permissive.
	filterInterval = 5 * time.Second
)

// permissive is what is known of one permissive remote.
type permissive struct {
	heard plan.Heard
	// hold is why nobody new is sent to through the tunnel, if so, as of heldAt.
	hold   string
	heldAt time.Time
	// waiting is how many peers are not sent to through the tunnel.
	waiting int
}

// withKeepalive is the device to a permissive remote with a keepalive, and any other as it is.
func withKeepalive(d *semaphorev1.Device) *semaphorev1.Device {
	if !d.GetPermissive() || d.GetPersistentKeepalive().AsDuration() > 0 {
		return d
	}
	d = proto.CloneOf(d)
	d.PersistentKeepalive = durationpb.New(permissiveKeepalive)
	return d
}

// hear decides to which nodes of a permissive remote packets go through the tunnel, none while it is clear; nil for one
// that is strict. peers are those that the device has, and nodes names the node of a key.
func (r *Reconciler) hear(
	d *device, want *desired.Network, peers []wgtypes.Peer, nodes func(wgtypes.Key) (string, bool),
) map[string]bool {
	if !want.Device.GetPermissive() {
		d.permissive = nil
		return nil
	}
	if d.permissive == nil {
		d.permissive = &permissive{}
	}
	p := d.permissive
	was := *p
	now := time.Now()
	if now.Sub(p.heldAt) >= filterInterval {
		hold := r.strictFilters(d.cluster, want)
		if hold != p.hold && hold != "" {
			slog.Warn("packets to a permissive remote stay in the clear", "problem", hold, "device", d.name)
		}
		p.hold, p.heldAt = hold, now
	}
	heard := p.heard.Update(now, peers, want.Peers, nodes, r.Peers.Silent(d.cluster), p.hold != "")
	if want.Device.GetClear() {
		heard = map[string]bool{}
	}
	p.waiting = len(want.Peers) - len(heard)
	if p.waiting != was.waiting {
		r.Events.Emit(events.Device(d.cluster, "hear",
			fmt.Sprintf("%d of %d peers are sent to through the tunnel", len(heard), len(want.Peers))))
	}
	if p.waiting != was.waiting || p.hold != was.hold {
		r.publish(d)
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

// strictFilters says what would drop packets that the remote still sends in the clear once this node's go through the
// tunnel; empty for nothing.
func (r *Reconciler) strictFilters(cluster string, want *desired.Network) string {
	if !takesEarly(want.Device) {
		return "" // the kernel has no such filter for IPv6
	}
	egress, err := r.kernel.EgressLinks(endpoints(want.Peers))
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
