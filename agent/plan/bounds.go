package plan

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-semaphore/semaphore/agent/wireguard"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Bounds are what the networks of remotes may be, whatever a broker says: the agent's own last line. What is
// outside them is refused, prefix by prefix and peer by peer, and all else goes on.
type Bounds struct {
	// Allowed hold all that may be routed or sent from; empty for anything that is not forbidden.
	Allowed []netip.Prefix
	// Local are the subnets of the own cluster.
	Local []netip.Prefix
	// Own are the addresses of this node, with the length of their subnets.
	Own []wireguard.Address
	// hosts are hostsOf(Own) where many endpoints are to be compared with them.
	hosts map[netip.Addr]string
	// Remote is what the node's own configuration says of the remote; nil where it says nothing of any.
	Remote *Remote
	// Standing are subnets that are routed or guarded already. An address that this node gets inside one of them does
	// not end that: a tunnel that works is not torn down because of a new bridge.
	Standing []netip.Prefix
}

// Remote is one remote cluster, as the operator has configured it.
type Remote struct {
	// Pods hold all that is routed to it, Nodes the endpoints of all of its peers; no Nodes are any that can be nodes
	// of a remote.
	Pods, Nodes []netip.Prefix
	// Port is the listen port of the device to it.
	Port int
}

// port is the one that the remote is configured with, 0 for none.
func (b Bounds) port() int {
	if b.Remote == nil {
		return 0
	}
	return b.Remote.Port
}

// mostSubnets is how many routes a device has at most: each is a route and several rules on every node, and pod subnets
// of one cluster are a few.
const mostSubnets = 256

// never are the ranges that no pod of a remote cluster can be in: this host, link-local, multicast.
var never = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/3"), netip.MustParsePrefix("::/127"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8"),
}

// The widest prefix that is a cluster's: 10.0.0.0/8 is the largest range of private addresses (RFC 1918), and a site
// has a /48 of IPv6 (RFC 6177), a provider rarely more than a /20. What is wider is half of a default route, or an
// eighth.
const (
	widest4 = 8
	widest6 = 16
)

// possible reads a prefix of a remote, or says why it can be none, whatever addresses this node has.
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
		return no("is everything")
	case prefix.Bits() < widest:
		return no("is wider than /%d, and no cluster is", widest)
	case prefix != prefix.Masked():
		return no("has bits set outside its mask")
	}
	for _, never := range never {
		if prefix.Overlaps(never) {
			return no("overlaps %s, which is no pod's", never)
		}
	}
	for _, local := range b.Local {
		if prefix.Overlaps(local) {
			return no("overlaps %s of the own cluster (localSubnets)", local)
		}
	}
	if len(b.Allowed) > 0 && !within(prefix, b.Allowed) {
		return no("is outside allowedSubnets")
	}
	if b.Remote != nil && !within(prefix, b.Remote.Pods) {
		return no("is outside the remote's podSubnets (subnetsFile)")
	}
	return prefix, nil
}

// Endpoint says why a remote's node cannot be at an address; nil where it can. This node sends there whatever its pods
// send to the remote, so whoever chooses the address chooses a target.
func (b Bounds) Endpoint(at netip.AddrPort) error {
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
	case within(netip.PrefixFrom(addr, addr.BitLen()), never):
		return no("is no address that a node can have for others")
	}
	hosts := b.hosts
	if hosts == nil {
		hosts = hostsOf(b.Own)
	}
	if why, taken := hosts[addr]; taken {
		return no("is %s", why)
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

// hostsOf are the addresses by which a node reaches itself, or all on a link, and what they are.
func hostsOf(own []wireguard.Address) map[netip.Addr]string {
	hosts := make(map[netip.Addr]string, 2*len(own))
	for _, a := range own {
		if all := broadcast(a.Prefix); all.IsValid() {
			hosts[all] = "the broadcast address of interface " + a.Interface
		}
	}
	for _, a := range own {
		hosts[a.Prefix.Addr()] = "an address of this node, of interface " + a.Interface
	}
	return hosts
}

// broadcast is the address that all hosts of an IPv4 subnet take packets to (RFC 919); none for subnets that have no
// such address (RFC 3021), and for IPv6.
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

// clash says what of this node is in the way of a prefix, and what to do about it; empty for nothing.
func (b Bounds) clash(prefix netip.Prefix) string {
	allowed := within(prefix, b.Allowed)
	for _, own := range b.Own {
		at := own.Prefix.Addr()
		switch {
		case prefix.Contains(at):
			return fmt.Sprintf("%s holds %s, an address of this node: give interface %s another subnet", prefix, at, own.Interface)
		case prefix.Overlaps(own.Prefix.Masked()) && !allowed:
			// What allowedSubnets names may lie in the subnet of a link: the operator knows the network.
			return fmt.Sprintf("%s overlaps %s, a subnet of this node on interface %s; if it is a remote's, name it in allowedSubnets",
				prefix, own.Prefix.Masked(), own.Interface)
		}
	}
	return ""
}

// prefix reads a prefix of a remote that is routed, or says why it cannot be one. conflict is what is in the way of one
// that is routed all the same, as it was before.
func (b Bounds) prefix(text string) (prefix netip.Prefix, conflict string, err error) {
	if prefix, err = b.possible(text); err != nil {
		return netip.Prefix{}, "", err
	}
	if conflict = b.clash(prefix); conflict != "" && !slices.Contains(b.Standing, prefix) {
		return netip.Prefix{}, "", errors.New(conflict)
	}
	return prefix, conflict, nil
}

func within(prefix netip.Prefix, all []netip.Prefix) bool {
	for _, p := range all {
		if p.Bits() <= prefix.Bits() && p.Overlaps(prefix) {
			return true
		}
	}
	return false
}

// The MTUs that an IP packet can have: the least of IPv4 (RFC 791), and the most.
const (
	leastMTU = 576
	mostMTU  = 65535
)

// device says what of a device cannot be. configured is the port that the node's own configuration has for it, 0 for
// none.
func device(d *semaphorev1.Device, configured int) (mtu, port error) {
	if m := d.GetMtu(); m != 0 && (m < leastMTU || m > mostMTU) {
		mtu = fmt.Errorf("mtu %d is not between %d and %d", m, leastMTU, mostMTU)
	}
	if p := d.GetListenPort(); p == 0 || p > 65535 {
		port = fmt.Errorf("listen port %d is none", p)
	} else if configured != 0 && int(p) != configured {
		port = fmt.Errorf("listen port %d is not the remote's listenPort %d (subnetsFile)", p, configured)
	}
	return mtu, port
}
