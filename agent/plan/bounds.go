package plan

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Bounds limit a broker's requests, as the agent's own last defense. The agent refuses those outside, prefix by prefix
// and peer by peer, and applies the rest.
type Bounds struct {
	// Allowed contain everything that may be routed or sent from; without any, everything that is not forbidden.
	Allowed []netip.Prefix
	// Local are the subnets of the own cluster.
	Local []netip.Prefix
	// Own are the addresses of this node, with the lengths of their subnets.
	Own []kernel.Address
	// hosts caches hostsOf(Own) for the comparison with many endpoints.
	hosts map[netip.Addr]host
	// Remote is the remote in the node's own configuration; nil if there is none.
	Remote *Remote
	// Existing are subnets that are routed or guarded already. An address that this node gets inside one of them does
	// not end that: a working tunnel is not torn down because of a new bridge.
	Existing []netip.Prefix
}

// Remote is one remote cluster in the node's own configuration.
type Remote struct {
	// Pods contain everything that is routed to it, Nodes the endpoints of its peers. Without Nodes any address that a
	// remote node can have is permitted.
	Pods, Nodes []netip.Prefix
	// Port is the listen port of the device to it.
	Port int
}

// port returns the configured port of the remote, 0 for none.
func (b Bounds) port() int {
	if b.Remote == nil {
		return 0
	}
	return b.Remote.Port
}

// maxSubnets is the limit of a device's routes: each is a route and several rules on every node, and a cluster has a
// few pod subnets.
const maxSubnets = 256

// forbidden are ranges that contain no pod of a remote cluster: this host, link-local, multicast.
var forbidden = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/3"), netip.MustParsePrefix("::/127"), netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
}

// The widest prefix of a cluster: 10.0.0.0/8 is the largest range of private addresses (RFC 1918), a site has a /48 of
// IPv6 (RFC 6177) and a provider rarely more than a /20. A wider prefix would be a large part of a default route.
const (
	widest4 = 8
	widest6 = 16
)

// possible parses a prefix of a remote, or returns why it cannot be one, whatever addresses this node has.
func (b Bounds) possible(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	no := func(format string, args ...any) (netip.Prefix, error) {
		return netip.Prefix{}, fmt.Errorf("%s "+format, append([]any{prefix}, args...)...)
	}
	widest := widest6
	if prefix.Addr().Is4() {
		widest = widest4
	}
	switch {
	case prefix.Addr().Is4In6():
		return no("is IPv4 in IPv6")
	case prefix.Bits() == 0:
		return no("contains every address")
	case prefix.Bits() < widest:
		return no("is wider than /%d, which is more than a cluster has", widest)
	case prefix != prefix.Masked():
		return no("has bits set outside its mask")
	}
	for _, never := range forbidden {
		if prefix.Overlaps(never) {
			return no("overlaps %s, which contains no pods", never)
		}
	}
	for _, local := range b.Local {
		if prefix.Overlaps(local) {
			return no("overlaps %s of the own cluster (localSubnets)", local)
		}
	}
	return prefix, nil
}

// granted returns why this node's own configuration does not have a prefix of a remote; nil if it has.
func (b Bounds) granted(prefix netip.Prefix) error {
	switch {
	case len(b.Allowed) > 0 && !Inside(prefix, b.Allowed):
		return fmt.Errorf("%s is outside allowedSubnets", prefix)
	case b.Remote != nil && !Inside(prefix, b.Remote.Pods):
		return fmt.Errorf("%s is outside the remote's podSubnets (subnetsFile)", prefix)
	}
	return nil
}

// endpoint returns why a remote node cannot have an address; nil if it can. This node sends all packets for the
// remote's pods there, so that the address decides who gets them.
func (b Bounds) endpoint(at netip.AddrPort) error {
	no := func(format string, args ...any) error {
		return fmt.Errorf("%s "+format, append([]any{at}, args...)...)
	}
	addr := at.Addr()
	switch {
	case at.Port() == 0:
		return no("has no port")
	case addr.Is4In6():
		return no("is IPv4 in IPv6")
	case addr.Zone() != "":
		return no("has a zone")
	case Inside(netip.PrefixFrom(addr, addr.BitLen()), forbidden):
		return no("cannot be the address of another node")
	}
	hosts := b.hosts
	if hosts == nil {
		hosts = hostsOf(b.Own)
	}
	if h, taken := hosts[addr]; taken {
		return no("is %s of interface %s", h.what, h.on)
	}
	for _, local := range b.Local {
		if local.Contains(addr) {
			return no("is inside %s of the own cluster (localSubnets)", local)
		}
	}
	contains := func(p netip.Prefix) bool { return p.Contains(addr) }
	if r := b.Remote; r != nil {
		switch {
		case slices.ContainsFunc(r.Pods, contains):
			return no("is inside the remote's podSubnets: packets for the tunnel would go into the tunnel")
		case len(r.Nodes) > 0 && !slices.ContainsFunc(r.Nodes, contains):
			return no("is outside the remote's nodeSubnets (subnetsFile)")
		}
	}
	return nil
}

// host is an address that no other node has, with its kind and interface.
type host struct{ what, on string }

// hostsOf returns the addresses by which a node reaches itself, or all hosts on a link.
func hostsOf(own []kernel.Address) map[netip.Addr]host {
	hosts := make(map[netip.Addr]host, len(own))
	for _, a := range own {
		if all := broadcast(a.Prefix); all.IsValid() {
			hosts[all] = host{"the broadcast address", a.Interface}
		}
	}
	for _, a := range own {
		hosts[a.Prefix.Addr()] = host{"an address of this node,", a.Interface}
	}
	return hosts
}

// broadcast returns the broadcast address of an IPv4 subnet (RFC 919); none for subnets without one (RFC 3021) and for
// IPv6.
func broadcast(subnet netip.Prefix) netip.Addr {
	if !subnet.Addr().Is4() || subnet.Bits() > 30 {
		return netip.Addr{}
	}
	last := subnet.Masked().Addr().As4()
	for i := subnet.Bits(); i < 32; i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(last)
}

// conflictOf describes the address of this node with which a prefix conflicts, and the fix; empty for none.
func (b Bounds) conflictOf(prefix netip.Prefix) string {
	allowed := Inside(prefix, b.Allowed)
	for _, own := range b.Own {
		at := own.Prefix.Addr()
		switch {
		case prefix.Contains(at):
			return fmt.Sprintf("%s contains %s, an address of this node: give interface %s another subnet", prefix, at,
				own.Interface)
		case prefix.Overlaps(own.Prefix.Masked()) && !allowed:
			// allowedSubnets may name a part of a link's subnet: the operator knows the network.
			return fmt.Sprintf("%s overlaps %s, a subnet of this node on interface %s; if it belongs to a remote, add it to "+
				"allowedSubnets",
				prefix, own.Prefix.Masked(), own.Interface)
		}
	}
	return ""
}

// prefix parses a prefix of a remote that is to be routed, or returns why it cannot be. conflict describes what
// conflicts with a prefix that remains routed, as it was before.
func (b Bounds) prefix(text string) (prefix netip.Prefix, conflict string, err error) {
	if prefix, err = b.possible(text); err == nil {
		err = b.granted(prefix)
	}
	if err != nil {
		return netip.Prefix{}, "", err
	}
	if conflict = b.conflictOf(prefix); conflict != "" && !slices.Contains(b.Existing, prefix) {
		return netip.Prefix{}, "", errors.New(conflict)
	}
	return prefix, conflict, nil
}

// Inside reports whether a prefix is one of these, or a part of one: then a route to it takes packets from theirs.
func Inside(prefix netip.Prefix, all []netip.Prefix) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Bits() <= prefix.Bits() && p.Overlaps(prefix) })
}

// The MTUs that an IP packet can have: the minimum of IPv4 (RFC 791), and the maximum.
const (
	minMTU = 576
	maxMTU = 65535
)

// device returns the invalid parts of a device. configured is its port in the node's own configuration, 0 for none.
func device(d *semaphorev1.Device, configured int) (mtu, port error) {
	if m := d.GetMtu(); m != 0 && (m < minMTU || m > maxMTU) {
		mtu = fmt.Errorf("mtu %d is not between %d and %d", m, minMTU, maxMTU)
	}
	if p := d.GetListenPort(); p == 0 || p > 65535 {
		port = fmt.Errorf("listen port %d is not valid", p)
	} else if configured != 0 && int(p) != configured {
		port = fmt.Errorf("listen port %d is not the remote's listenPort %d (subnetsFile)", p, configured)
	}
	return mtu, port
}
