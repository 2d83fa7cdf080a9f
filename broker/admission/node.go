package admission

import (
	"bytes"
	"crypto/ecdh"
	"fmt"
	"net/netip"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// node returns a node without its invalid pod CIDRs or tunnel endpoint, so that one wrong annotation costs the peer
// but not everything else about the node.
func (t *check) node(o *semaphorev1.Object) *semaphorev1.Object {
	n := o.GetNode()
	if len(n.GetPodCidrs()) > maxPodCIDRs {
		t.refuse(finding.TooLarge, "pod_cidrs: %d exceed the limit of %d", len(n.GetPodCidrs()), maxPodCIDRs)
		return nil
	}
	kept := make([]string, 0, len(n.GetPodCidrs()))
	for _, text := range n.GetPodCidrs() {
		if t.podCIDR(text) {
			kept = append(kept, text)
		}
	}
	wireguard := n.GetWireguard()
	if wireguard != nil {
		wireguard = t.wireguard(wireguard)
	}
	if len(kept) == len(n.GetPodCidrs()) && wireguard == n.GetWireguard() {
		return o
	}
	taken := clone(o)
	taken.GetNode().PodCidrs = kept
	taken.GetNode().Wireguard = wireguard
	return taken
}

// wireguard returns an endpoint with the candidates at which this cluster's nodes may send, the first address of which
// is the one of older agents; nil if there is no valid key, or no such candidate though the node does not call. Those
// outside the node subnets are another cluster's choice; other invalid ones are refused beside the rest.
func (t *check) wireguard(w *semaphorev1.WireGuardEndpoint) *semaphorev1.WireGuardEndpoint {
	if !t.publicKey(w.GetPublicKey()) {
		return nil
	}
	if len(w.GetCandidates()) == 0 {
		if !w.GetCalls() && !t.wireguardAddress(w.GetAddress()) {
			return nil
		}
		if !w.GetCalls() || w.GetAddress() == "" {
			return w
		}
		return &semaphorev1.WireGuardEndpoint{PublicKey: w.GetPublicKey(), Calls: true}
	}
	if n := len(w.GetCandidates()); n > naming.MaxCandidates {
		t.refuse(finding.TooLarge, "wireguard.candidates: %d exceed the limit of %d", n, naming.MaxCandidates)
		return nil
	}
	out := &semaphorev1.WireGuardEndpoint{PublicKey: w.GetPublicKey()}
	var outside string
	for _, text := range w.GetCandidates() {
		at, _, _ := naming.Candidate(text)
		code, why := t.candidate(text)
		switch {
		case why == "" && out.GetAddress() == "" && at.IsValid():
			out.Address = text
			fallthrough
		case why == "":
			out.Candidates = append(out.Candidates, text)
		case code != "":
			t.refuse(code, "%s", why)
		default:
			outside = why
		}
	}
	switch {
	case len(out.GetCandidates()) == 0:
		if outside != "" {
			t.refuse(finding.EndpointNotAllowed, "%s", outside)
		}
		return nil
	case len(out.GetCandidates()) == 1 && out.GetAddress() != "":
		out.Candidates = nil
	}
	return out
}

// candidate returns why a candidate is not accepted, without a code if it is only outside of the node subnets; an empty
// text if it is accepted. The agents look a name up, and judge the addresses by the same bounds.
func (t *check) candidate(text string) (code finding.Code, why string) {
	_, name, ok := naming.Candidate(text)
	switch {
	case !ok:
		return finding.InvalidEndpoint, fmt.Sprintf("wireguard.candidates %.80q: use IP:port or name:port", text)
	case name != "":
		return "", ""
	}
	if code, why = t.nodeAddress(text); why == "" {
		why = t.outside(text)
	}
	return code, why
}

// podCIDR checks a prefix that becomes an allowed IP of the node's peer, and so permits inner source addresses.
func (t *check) podCIDR(text string) bool {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		t.refuse(finding.InvalidCIDR, "pod_cidrs: %q is not a CIDR", text)
	case p.Addr().Is4In6() || p != p.Masked() || p.String() != text:
		t.refuse(finding.InvalidCIDR, "pod_cidrs: %q is not canonical: use %s", text, p.Masked())
	case p.Bits() == 0:
		t.refuse(finding.InvalidCIDR, "pod_cidrs: %s contains every address", text)
	case !containsPrefix(t.remote.PodPrefixes, p):
		t.refuse(finding.CIDROutsidePodSubnets, "pod_cidrs: %s is outside the pod subnets %v of %s", p, t.remote.PodPrefixes,
			t.remote.Name)
	default:
		return true
	}
	return false
}

// probeKey is the local key for the detection of points of low order (RFC 7748, section 6.1): with such a peer every
// private key results in the same, known shared secret.
var probeKey = func() *ecdh.PrivateKey {
	key, err := ecdh.X25519().NewPrivateKey(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		panic(err) // any 32 bytes are a private key
	}
	return key
}()

func (t *check) publicKey(raw []byte) bool {
	public, err := ecdh.X25519().NewPublicKey(raw)
	if err != nil {
		t.refuse(finding.InvalidPublicKey, "wireguard.public_key has %d bytes: a Curve25519 key has 32", len(raw))
		return false
	}
	if !canonicalKey(raw) {
		t.refuse(finding.InvalidPublicKey,
			"wireguard.public_key is not canonical: it must be less than 2²⁵⁵-19 (RFC 7748, section 5)")
		return false
	}
	if _, err := probeKey.ECDH(public); err != nil {
		t.refuse(finding.InvalidPublicKey,
			"wireguard.public_key is a point of low order (such as zero), whose shared secret is known")
		return false
	}
	return true
}

// canonicalKey reports whether a key is the canonical encoding of its point. Other encodings mean the same to
// Curve25519, and would not be recognized as another node's key.
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

// reservedRanges are unicast ranges that contain no node, and packets to which would reach something else: "this
// network" and the reserved class (RFC 1122, RFC 1112), IETF protocol assignments, 6to4 relays and benchmarks (RFC
// 6890), NAT64, 6to4 and Teredo, which embed IPv4 addresses, documentation and discard ranges, and the addresses of the
// metadata services of EC2, Alibaba, Azure and Oracle.
var reservedRanges = mustPrefixes("0.0.0.0/8", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "240.0.0.0/4",
	"64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2002::/16", "3fff::/20", "fec0::/10", "::/96",
	"fd00:ec2::/32", "100.100.100.200/32", "168.63.129.16/32", "fd20:ce::254/128")

func mustPrefixes(all ...string) (out []netip.Prefix) {
	for _, text := range all {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// wireguardAddress checks the address that this cluster's nodes will send packets to.
func (t *check) wireguardAddress(text string) bool {
	code, why := t.nodeAddress(text)
	if why == "" {
		code, why = finding.EndpointNotAllowed, t.outside(text)
	}
	if why != "" {
		t.refuse(code, "%s", why)
	}
	return why == ""
}

// nodeAddress returns why the nodes of this cluster must not send packets to an address, so that a remote cannot choose
// an arbitrary target; an empty text if they may.
func (t *check) nodeAddress(text string) (code finding.Code, why string) {
	ap, err := netip.ParseAddrPort(text)
	if err != nil {
		return finding.InvalidEndpoint, fmt.Sprintf(
			"wireguard.address %q: use IP:port or [IPv6]:port; names are not resolved", text)
	}
	ip := ap.Addr()
	switch {
	case ip.Zone() != "" || ip.Is4In6():
		return finding.InvalidEndpoint, fmt.Sprintf("wireguard.address %q: use the plain form of the address", text)
	case ap.Port() == 0:
		return finding.InvalidEndpoint, fmt.Sprintf("wireguard.address %q: port 0 is not valid", text)
	}
	code = finding.EndpointNotAllowed
	switch {
	case !ip.IsGlobalUnicast():
		// This excludes unspecified, loopback, link-local, multicast and broadcast addresses.
		return code, fmt.Sprintf("wireguard.address %s cannot be the address of a node of another cluster", ip)
	case containsAddr(reservedRanges, ip):
		return code, fmt.Sprintf("wireguard.address %s is in a range without nodes (metadata, NAT64, 6to4, reserved)", ip)
	case containsAddr(t.others, ip):
		return code, fmt.Sprintf("wireguard.address %s is in the pod subnets of another cluster", ip)
	case containsAddr(t.remote.PodPrefixes, ip):
		return code, fmt.Sprintf("wireguard.address %s is in the pod subnets of %s: packets for the tunnel would go into "+
			"the tunnel", ip, t.remote.Name)
	case containsAddr(t.local, ip):
		return code, fmt.Sprintf("wireguard.address %s is in the subnets of this cluster", ip)
	}
	return "", ""
}

// outside returns why a valid endpoint is outside of the remote's node subnets; an empty text if it is inside.
func (t *check) outside(text string) string {
	ip := netip.MustParseAddrPort(text).Addr()
	if len(t.remote.NodePrefixes) == 0 || containsAddr(t.remote.NodePrefixes, ip) {
		return ""
	}
	return fmt.Sprintf("wireguard.address %s is outside the node subnets %v of %s", ip, t.remote.NodePrefixes,
		t.remote.Name)
}
