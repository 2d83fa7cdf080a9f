package admission

import (
	"bytes"
	"crypto/ecdh"
	"net/netip"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// node takes a node without its bad pod CIDRs and without a bad end of its tunnel, so
// that one wrong annotation costs a peer and not what else is known of the node.
func (t *trial) node(o *semaphorev1.Object) *semaphorev1.Object {
	n := o.GetNode()
	if len(n.GetPodCidrs()) > maxPodCIDRs {
		t.refuse(TooLarge, "pod_cidrs: %d, and %d is the most", len(n.GetPodCidrs()), maxPodCIDRs)
		return nil
	}
	kept := make([]string, 0, len(n.GetPodCidrs()))
	for _, text := range n.GetPodCidrs() {
		if t.podCIDR(text) {
			kept = append(kept, text)
		}
	}
	wireguard := n.GetWireguard()
	if wireguard != nil && !(t.publicKey(wireguard.GetPublicKey()) && t.wireguardAddress(wireguard.GetAddress())) {
		wireguard = nil
	}
	if len(kept) == len(n.GetPodCidrs()) && wireguard == n.GetWireguard() {
		return o
	}
	taken := clone(o)
	taken.GetNode().PodCidrs = kept
	if wireguard == nil {
		taken.GetNode().Wireguard = nil
	}
	return taken
}

// podCIDR is what becomes an allowed IP of the node's peer: what a packet's inner source
// may be.
func (t *trial) podCIDR(text string) bool {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		t.refuse(InvalidCIDR, "pod_cidrs: %q is no CIDR", text)
	case p.Addr().Is4In6() || p != p.Masked() || p.String() != text:
		t.refuse(InvalidCIDR, "pod_cidrs: %q is not canonical: use %s", text, p.Masked())
	case p.Bits() == 0:
		t.refuse(InvalidCIDR, "pod_cidrs: %s is everything", text)
	case !containsPrefix(t.remote.PodPrefixes, p):
		t.refuse(CIDROutsidePodSubnets, "pod_cidrs: %s is outside the pod subnets %v of %s", p, t.remote.PodPrefixes, t.remote.Name)
	default:
		return true
	}
	return false
}

// anyKey stands for the local end in the test for points of low order (RFC 7748, section 6.1):
// with such a peer every private key gives the same, known shared secret.
var anyKey = func() *ecdh.PrivateKey {
	key, err := ecdh.X25519().NewPrivateKey(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		panic(err) // any 32 bytes are a private key
	}
	return key
}()

func (t *trial) publicKey(raw []byte) bool {
	public, err := ecdh.X25519().NewPublicKey(raw)
	if err != nil {
		t.refuse(InvalidPublicKey, "wireguard.public_key has %d bytes: a Curve25519 key has 32", len(raw))
		return false
	}
	if !canonicalKey(raw) {
		t.refuse(InvalidPublicKey, "wireguard.public_key is another spelling of a key: it must be less than 2²⁵⁵-19 (RFC 7748, section 5)")
		return false
	}
	if _, err := anyKey.ECDH(public); err != nil {
		t.refuse(InvalidPublicKey, "wireguard.public_key is a point of low order (such as zero), which protects nothing")
		return false
	}
	return true
}

// canonicalKey says whether a key is the one spelling of its point. Others mean the same to Curve25519, and would not
// be seen to be another node's.
func canonicalKey(raw []byte) bool {
	if raw[31] != 0x7f {
		return raw[31] < 0x7f
	}
	for _, b := range raw[1:31] {
		if b != 0xff {
			return true
		}
	}
	return raw[0] < 0xed
}

// special are unicast ranges at which no node is, and packets to which would reach something else: "this network" and the reserved
// class (RFC 1122, RFC 1112), what the IETF keeps for protocols, relays of 6to4 and benchmarks (RFC 6890), addresses of NAT64, 6to4
// and Teredo, which stand for IPv4 ones, documentation and discarded ones; and single addresses at which clouds have their
// metadata: EC2, Alibaba, Azure, Oracle.
var special = mustPrefixes("0.0.0.0/8", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "240.0.0.0/4",
	"64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2002::/16", "3fff::/20", "fec0::/10", "::/96",
	"fd00:ec2::/32", "100.100.100.200/32", "168.63.129.16/32", "fd20:ce::254/128")

func mustPrefixes(all ...string) (out []netip.Prefix) {
	for _, text := range all {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// wireguardAddress is where this cluster's nodes will send packets to, so a remote must not be
// able to name a place of its choice.
func (t *trial) wireguardAddress(text string) bool {
	ap, err := netip.ParseAddrPort(text)
	if err != nil {
		t.refuse(InvalidEndpoint, "wireguard.address %q: use IP:port or [IPv6]:port; names are not resolved", text)
		return false
	}
	ip := ap.Addr()
	switch {
	case ip.Zone() != "" || ip.Is4In6():
		t.refuse(InvalidEndpoint, "wireguard.address %q: use the plain form of the address", text)
	case ap.Port() == 0:
		t.refuse(InvalidEndpoint, "wireguard.address %q: port 0 is none", text)
	case !ip.IsGlobalUnicast():
		// Leaves out unspecified, loopback, link-local, multicast and broadcast.
		t.refuse(EndpointNotAllowed, "wireguard.address %s is no address that a node of another cluster can have", ip)
	case containsAddr(special, ip):
		t.refuse(EndpointNotAllowed, "wireguard.address %s is in a range that stands for something else than a node (metadata, NAT64, 6to4, reserved)", ip)
	case containsAddr(t.others, ip):
		t.refuse(EndpointNotAllowed, "wireguard.address %s is in the pod subnets of another cluster", ip)
	case containsAddr(t.remote.PodPrefixes, ip):
		t.refuse(EndpointNotAllowed, "wireguard.address %s is in the pod subnets of %s: packets for the tunnel would go into the tunnel", ip, t.remote.Name)
	case containsAddr(t.local, ip):
		t.refuse(EndpointNotAllowed, "wireguard.address %s is in the subnets of this cluster", ip)
	case len(t.remote.NodePrefixes) > 0 && !containsAddr(t.remote.NodePrefixes, ip):
		t.refuse(EndpointNotAllowed, "wireguard.address %s is outside the node subnets %v of %s", ip, t.remote.NodePrefixes, t.remote.Name)
	default:
		return true
	}
	return false
}
