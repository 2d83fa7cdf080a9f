// Package plan decides what to change on a node: what is wanted and what stands in, the
// smallest list of steps out. It is pure.
//
// It is also the agent's own last line: whatever a broker says, no step touches an
// interface that cannot be ours, or routes what no remote pod subnet can be.
package plan

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/desired"
	"github.com/kube-semaphore/semaphore/agent/wireguard"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Steps are what to do to one device, in the order of the fields.
type Steps struct {
	Name, Alias string
	MTU         int
	// Create says that there is no device.
	Create bool
	// SetLink says that alias, MTU or the up flag differ.
	SetLink bool
	// Config is nil when keys, port and peers are as wanted.
	Config *wgtypes.Config
	// DeleteRoutes are ours and not wanted; AddRoutes are wanted and missing.
	DeleteRoutes, AddRoutes []netip.Prefix
	// Refused are parts of what is wanted that are not done, and why, a line each.
	Refused []string
}

// Empty says that everything stands as wanted.
func (s Steps) Empty() bool {
	return !s.Create && !s.SetLink && s.Config == nil && len(s.DeleteRoutes) == 0 && len(s.AddRoutes) == 0
}

// Network plans one device as a whole. stands is nil when there is none.
func Network(cluster string, want *desired.Network, key wgtypes.Key, stands *wireguard.Device) Steps {
	s := Steps{Name: naming.Device(cluster), Alias: naming.DeviceAlias(cluster), MTU: int(want.Device.GetMtu())}
	if s.MTU == 0 {
		s.MTU = wireguard.DefaultMTU
	}
	if stands == nil {
		s.Create = true
		stands = &wireguard.Device{Alias: s.Alias, MTU: s.MTU}
	}
	s.SetLink = !stands.Up || stands.Alias != s.Alias || stands.MTU != s.MTU

	var cfg wgtypes.Config
	if stands.PrivateKey != key {
		cfg.PrivateKey = &key
	}
	if port := int(want.Device.GetListenPort()); stands.ListenPort != port {
		cfg.ListenPort = &port
	}
	peers, refused := wantedPeers(want)
	s.Refused = append(s.Refused, refused...)
	present := map[wgtypes.Key]bool{}
	for _, p := range stands.Peers {
		present[p.PublicKey] = true
		if wanted, ok := peers[p.PublicKey]; !ok {
			cfg.Peers = append(cfg.Peers, wgtypes.PeerConfig{PublicKey: p.PublicKey, Remove: true})
		} else if !same(p, wanted) {
			cfg.Peers = append(cfg.Peers, wanted)
		}
	}
	for k, p := range peers {
		if !present[k] {
			cfg.Peers = append(cfg.Peers, p)
		}
	}
	// What goes goes first, so that a prefix is never taken from a peer that has just got it.
	slices.SortFunc(cfg.Peers, func(a, b wgtypes.PeerConfig) int {
		if a.Remove != b.Remove {
			if a.Remove {
				return -1
			}
			return 1
		}
		return bytes.Compare(a.PublicKey[:], b.PublicKey[:])
	})
	if cfg.PrivateKey != nil || cfg.ListenPort != nil || len(cfg.Peers) > 0 {
		s.Config = &cfg
	}
	s.routes(want, stands)
	return s
}

func (s *Steps) routes(want *desired.Network, stands *wireguard.Device) {
	wanted := map[netip.Prefix]bool{}
	for _, text := range want.Device.GetPodSubnets() {
		prefix, err := checkPrefix(text)
		if err != nil {
			s.Refused = append(s.Refused, fmt.Sprintf("route %s: %v", text, err))
			continue
		}
		wanted[prefix] = true
	}
	// The kernel forgets routes when an interface goes down; Routes tells what is there.
	for _, r := range stands.Routes {
		if !wanted[r] {
			s.DeleteRoutes = append(s.DeleteRoutes, r)
		}
		delete(wanted, r)
	}
	s.AddRoutes = slices.SortedFunc(maps.Keys(wanted), netip.Prefix.Compare)
}

// Peers plans single peers that changed, from what was last programmed: was and is hold nil
// for one that is not wanted. It needs no look at the device.
func Peers(was, is []*semaphorev1.Peer) (cfg wgtypes.Config, refused []string) {
	keep := map[wgtypes.Key]bool{}
	var set []wgtypes.PeerConfig
	for _, p := range is {
		if p == nil {
			continue
		}
		c, err := peerConfig(p, nil)
		if err != nil {
			refused = append(refused, fmt.Sprintf("peer %s: %v", p.GetKey().GetNode(), err))
			continue
		}
		keep[c.PublicKey] = true
		set = append(set, c)
	}
	for _, p := range was {
		if p == nil {
			continue
		}
		if c, err := peerConfig(p, nil); err == nil && !keep[c.PublicKey] {
			cfg.Peers = append(cfg.Peers, wgtypes.PeerConfig{PublicKey: c.PublicKey, Remove: true})
		}
	}
	cfg.Peers = append(cfg.Peers, set...)
	return cfg, refused
}

// Keepalive sets the interval of every peer that is set.
func Keepalive(cfg *wgtypes.Config, interval time.Duration) {
	for i := range cfg.Peers {
		if !cfg.Peers[i].Remove {
			cfg.Peers[i].PersistentKeepaliveInterval = &interval
		}
	}
}

// wantedPeers is by public key. Of two nodes with one key the first by name is taken: the broker
// has told them apart already, and if not, the outcome must not change from one look to the next.
func wantedPeers(want *desired.Network) (map[wgtypes.Key]wgtypes.PeerConfig, []string) {
	out := make(map[wgtypes.Key]wgtypes.PeerConfig, len(want.Peers))
	var refused []string
	keepalive := want.Device.GetPersistentKeepalive().AsDuration()
	for _, node := range slices.Sorted(maps.Keys(want.Peers)) {
		c, err := peerConfig(want.Peers[node], &keepalive)
		if err == nil {
			if _, taken := out[c.PublicKey]; taken {
				err = fmt.Errorf("its public key %s is another node's", c.PublicKey)
			}
		}
		if err != nil {
			refused = append(refused, fmt.Sprintf("peer %s: %v", node, err))
			continue
		}
		out[c.PublicKey] = c
	}
	return out, refused
}

func peerConfig(p *semaphorev1.Peer, keepalive *time.Duration) (wgtypes.PeerConfig, error) {
	key, err := wgtypes.NewKey(p.GetWireguard().GetPublicKey())
	if err != nil {
		return wgtypes.PeerConfig{}, fmt.Errorf("public key: %w", err)
	}
	endpoint, err := netip.ParseAddrPort(p.GetWireguard().GetAddress())
	if err != nil {
		return wgtypes.PeerConfig{}, fmt.Errorf("endpoint: %w", err)
	}
	c := wgtypes.PeerConfig{
		PublicKey:                   key,
		Endpoint:                    net.UDPAddrFromAddrPort(endpoint),
		ReplaceAllowedIPs:           true,
		PersistentKeepaliveInterval: keepalive,
	}
	for _, text := range p.GetAllowedIps() {
		prefix, err := checkPrefix(text)
		if err != nil {
			return wgtypes.PeerConfig{}, fmt.Errorf("allowed IPs: %w", err)
		}
		c.AllowedIPs = append(c.AllowedIPs, net.IPNet{
			IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen()),
		})
	}
	return c, nil
}

// checkPrefix refuses what no remote pod can have.
func checkPrefix(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	addr := prefix.Addr()
	switch {
	case prefix.Bits() == 0:
		return netip.Prefix{}, fmt.Errorf("%s is everything", prefix)
	case prefix != prefix.Masked():
		return netip.Prefix{}, fmt.Errorf("%s has bits set outside its mask", prefix)
	case addr.Is4In6():
		return netip.Prefix{}, fmt.Errorf("%s is IPv4 in IPv6", prefix)
	}
	for _, never := range never {
		if prefix.Overlaps(never) {
			return netip.Prefix{}, fmt.Errorf("%s overlaps %s, which is no pod's", prefix, never)
		}
	}
	return prefix, nil
}

// never are the ranges that no pod of a remote cluster can be in: this host, link-local, multicast.
var never = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/3"), netip.MustParsePrefix("::/127"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8"),
}

// same says whether a peer stands as it is wanted.
func same(stands wgtypes.Peer, want wgtypes.PeerConfig) bool {
	if stands.Endpoint == nil || stands.Endpoint.AddrPort() != want.Endpoint.AddrPort() {
		return false
	}
	if want.PersistentKeepaliveInterval != nil && stands.PersistentKeepaliveInterval != *want.PersistentKeepaliveInterval {
		return false
	}
	return slices.Equal(sorted(stands.AllowedIPs), sorted(want.AllowedIPs))
}

func sorted(ips []net.IPNet) []string {
	out := make([]string, len(ips))
	for i := range ips {
		out[i] = ips[i].String()
	}
	slices.Sort(out)
	return out
}
