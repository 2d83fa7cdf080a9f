package guard

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Remote is a remote cluster to guard. The only interface that leads to its addresses is the device to the cluster,
// which need not exist.
type Remote struct {
	// Subnets are the remote's pod subnets, canonical.
	Subnets []netip.Prefix
	// Port is the UDP port of the device on this node, and Nodes are the subnets of the remote's nodes. Packets
	// between the port and other addresses are dropped: WireGuard would follow a peer that roams there. Without Nodes
	// any address is accepted.
	Port  int
	Nodes []netip.Prefix
	// Permissive counts packets that bypass the device instead of dropping them, and adds no unreachable routes.
	Permissive bool
	// RoutedElsewhere means that routes outside the agent's table lead into the device, which the agent's would
	// precede: until its table routes into the device, it adds no unreachable routes.
	RoutedElsewhere bool
	// Closed means that an existing interface of the device's name is not the agent's: packets must not pass it
	// either.
	Closed bool
}

// tunnel reports whether the addresses of the remote's nodes are known.
func (r Remote) tunnel() bool { return r.Port != 0 && len(r.Nodes) > 0 }

type remotes map[string]Remote

// direction is one of the two ways in which packets can bypass a device, or one of the two directions of its tunnels'
// packets.
type direction string

const (
	out direction = "out"
	in  direction = "in"
	// sending and arriving are for the packets that the device has encrypted or will decrypt.
	sending  direction = "sending"
	arriving direction = "arriving"
)

func (d direction) tunnel() bool { return d == sending || d == arriving }

// counterOf returns the name of the counter of dropped packets, and passedOf that of packets that bypassed a device
// and were accepted.
func counterOf(d direction, cluster string) string { return string(d) + "." + naming.Device(cluster) }

func passedOf(d direction, cluster string) string { return counterOf(d, cluster) + ".passed" }

type verdict string

const (
	pass verdict = "pass"
	// drop drops all other packets, and count passes them; both count them.
	drop  verdict = "drop"
	count verdict = "count"
)

// rule is one rule of a chain. The zero Prefix and Cluster are those of the rule for loopback, where nothing leaves or
// enters the node. Port is the port of a tunnel's packets; then an invalid Prefix means all addresses.
type rule struct {
	Cluster string
	Prefix  netip.Prefix
	Port    int
	Verdict verdict
}

// comment returns the text that the kernel stores with a rule, of at most 128 bytes (nft's NFTNL_UDATA_COMMENT_MAXLEN):
// the agent, also a later one, recognizes the rule by it.
func (r rule) comment() string {
	switch {
	case r.Cluster == "":
		return "loopback pass"
	case r.Port == 0:
		return fmt.Sprintf("%s %s %s", r.Cluster, r.Prefix, r.Verdict)
	case !r.Prefix.IsValid():
		return fmt.Sprintf("%s elsewhere %s %d", r.Cluster, r.Verdict, r.Port)
	}
	return fmt.Sprintf("%s %s %s %d", r.Cluster, r.Prefix, r.Verdict, r.Port)
}

// rules returns the rules of a chain, in order. The longest prefix comes first, as in routing, so that a remote whose
// subnet lies within another's, which no broker should request, is still separate.
func (all remotes) rules() []rule {
	var each, rules []rule
	for cluster, r := range all {
		last := drop
		if r.Permissive {
			last = count
		}
		for _, prefix := range r.Subnets {
			each = append(each, rule{cluster, prefix, 0, last})
		}
	}
	slices.SortFunc(each, func(a, b rule) int {
		return cmp.Or(cmp.Compare(b.Prefix.Bits(), a.Prefix.Bits()), a.Prefix.Compare(b.Prefix),
			cmp.Compare(a.Cluster, b.Cluster))
	})
	rules = append(rules, rule{})
	for i, r := range each {
		if !all[r.Cluster].Closed {
			rules = append(rules, rule{r.Cluster, r.Prefix, 0, pass})
		}
		if i+1 == len(each) || each[i+1].Prefix != r.Prefix {
			rules = append(rules, r)
		}
	}
	return rules
}

// tunnels returns the rules for the packets of the devices themselves.
func (all remotes) tunnels() []rule {
	var rules []rule
	for _, cluster := range slices.Sorted(maps.Keys(all)) {
		r := all[cluster]
		if !r.tunnel() {
			continue
		}
		for _, prefix := range r.Nodes {
			rules = append(rules, rule{cluster, prefix, r.Port, pass})
		}
		rules = append(rules, rule{cluster, netip.Prefix{}, r.Port, drop})
	}
	return rules
}

func (all remotes) of(d direction, inbound bool) []rule {
	switch {
	case d.tunnel():
		return all.tunnels()
	case d == in && !inbound:
		return nil
	}
	return all.rules()
}

// outermost returns the subnets of all remotes that are in no other, in order: the elements of a map must not overlap.
func (all remotes) outermost() (prefixes []netip.Prefix) {
	for _, r := range all {
		for _, p := range r.Subnets {
			prefixes = append(prefixes, p.Masked())
		}
	}
	return widest(prefixes)
}

// around returns the one of the outermost subnets that a subnet is in.
func around(outermost []netip.Prefix, p netip.Prefix) netip.Prefix {
	at, exact := slices.BinarySearchFunc(outermost, p.Masked(), netip.Prefix.Compare)
	if !exact {
		at--
	}
	return outermost[at]
}

// parseTunnelComments adds to remotes the ports and nodes in these rules' comments.
func parseTunnelComments(all remotes, comments []string) {
	for _, c := range comments {
		fields := strings.Fields(c)
		if len(fields) != 4 {
			continue
		}
		r, there := all[fields[0]]
		port, err := strconv.Atoi(fields[3])
		if !there || err != nil {
			continue
		}
		r.Port = port
		if prefix, err := netip.ParsePrefix(fields[1]); err == nil {
			r.Nodes = canonical(append(r.Nodes, prefix)) // also a table of two layouts has each once
		}
		all[fields[0]] = r
	}
}

// parseComments returns the remotes that the rules with these comments guard. It ignores other comments.
func parseComments(comments []string) remotes {
	all := remotes{}
	passes := map[string]bool{}
	for _, c := range comments {
		fields := strings.Fields(c)
		if len(fields) != 3 {
			continue
		}
		prefix, err := netip.ParsePrefix(fields[1])
		if err != nil {
			continue
		}
		r := all[fields[0]]
		switch verdict(fields[2]) {
		case pass:
			passes[fields[0]] = true
		case drop:
		case count:
			r.Permissive = true
		default:
			continue
		}
		r.Subnets = canonical(append(r.Subnets, prefix))
		all[fields[0]] = r
	}
	for cluster, r := range all {
		r.Closed = !passes[cluster]
		all[cluster] = r
	}
	return all
}

func (all remotes) counters() map[string]bool {
	names := map[string]bool{}
	for cluster, r := range all {
		names[counterOf(out, cluster)], names[counterOf(in, cluster)] = true, true
		if r.tunnel() {
			names[counterOf(sending, cluster)], names[counterOf(arriving, cluster)] = true, true
		}
		if r.Permissive {
			names[passedOf(out, cluster)], names[passedOf(in, cluster)] = true, true
		}
	}
	return names
}

// expressions returns the rule for the kernel's virtual machine, see nft(8), "nft --debug=netlink".
func (r rule) expressions(d direction) []expr.Any {
	if r.Port != 0 {
		return r.tunnelExpressions(d)
	}
	name := expr.MetaKeyOIFNAME
	if d == in {
		name = expr.MetaKeyIIFNAME
	}
	by := func(device string) []expr.Any {
		return []expr.Any{
			&expr.Meta{Key: name, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: interfaceName(device)},
		}
	}
	if r.Cluster == "" {
		return append(by("lo"), &expr.Verdict{Kind: expr.VerdictAccept})
	}
	exprs := r.addresses(d)
	switch r.Verdict {
	case drop:
		return counted(exprs, counterOf(d, r.Cluster), expr.VerdictDrop)
	case count:
		return counted(exprs, passedOf(d, r.Cluster), expr.VerdictAccept)
	}
	// "Accept" applies to this table only: other chains are still evaluated.
	return append(append(exprs, by(naming.Device(r.Cluster))...), &expr.Verdict{Kind: expr.VerdictAccept})
}

func (r rule) tunnelExpressions(d direction) []expr.Any {
	exprs := append(tunnelPort(d),
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, uint16(r.Port))})
	if r.Verdict == pass {
		return append(append(exprs, r.addresses(d)...), &expr.Verdict{Kind: expr.VerdictAccept})
	}
	return counted(exprs, counterOf(d, r.Cluster), expr.VerdictDrop)
}

func counted(exprs []expr.Any, counter string, verdict expr.VerdictKind) []expr.Any {
	return append(exprs, &expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: counter}, &expr.Verdict{Kind: verdict})
}

func (r rule) addresses(d direction) []expr.Any {
	address := r.Prefix.Addr().AsSlice()
	length := uint32(len(address))
	return append(remoteAddress(d, r.Prefix.Addr().Is6()),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: length, Mask: kernel.IPNet(r.Prefix).Mask,
			Xor: make([]byte, length)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: address})
}

// tunnelPort loads the port of this node's device from a UDP packet.
func tunnelPort(d direction) []expr.Any {
	offset := uint32(0) // of the source port, RFC 768
	if d == arriving {
		offset = 2
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
	}
}

// remoteAddress loads the address of the other side from a packet of a family.
func remoteAddress(d direction, v6 bool) []expr.Any {
	family, offset, length := byte(unix.NFPROTO_IPV4), uint32(16), uint32(4) // of the destination, RFC 791
	from := d == in || d == arriving
	switch {
	case v6 && from:
		family, offset, length = unix.NFPROTO_IPV6, 8, 16 // RFC 8200
	case v6:
		family, offset, length = unix.NFPROTO_IPV6, 24, 16
	case from:
		offset = 12
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length},
	}
}

// interfaceName returns a name as the kernel compares it: all of IFNAMSIZ bytes.
func interfaceName(name string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return padded
}
