// Package plan decides the changes of a node: it compares the desired with the existing state, and returns the smallest
// list of steps. It also decides which device is due, and when the next one is (Scheduler), and the MTU of a device
// whose configuration names none (MTU). It is pure: no clock, no socket, no call of the kernel.
//
// It is also the agent's own last defense: whatever a broker requests, no step changes an interface that cannot be the
// agent's, or routes a prefix that cannot be a remote pod subnet.
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

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Steps are the steps for one device, in the order of the fields.
type Steps struct {
	Name, Alias string
	MTU         int
	// Create means that the device does not exist.
	Create bool
	// SetLink means that alias, MTU or the up flag differ.
	SetLink bool
	// Config is nil if keys, port and peers are as desired.
	Config *wgtypes.Config
	// DeleteRoutes are the agent's and not desired; AddRoutes are desired and missing.
	DeleteRoutes, AddRoutes []netip.Prefix
	// ChangeRoutes exist with another source address than in Sources.
	ChangeRoutes []netip.Prefix
	// AddAddresses are missing on the device, DeleteAddresses are not desired.
	AddAddresses, DeleteAddresses []netip.Addr
	Sources                       Sources
	// Refused are desired settings and routes of the device that are not applied, with the reasons, a line each. Applied
	// has such peers.
	Refused []string
	// Conflicts are conflicts of this node's addresses with subnets that remain routed, a line each.
	Conflicts []string
	// Routed are the subnets that are routed after the steps.
	Routed []netip.Prefix
	// Applied is the network after the steps, for changes of single peers.
	Applied *AppliedPeers
}

func (s Steps) Empty() bool {
	return !s.Create && !s.SetLink && s.Config == nil && len(s.DeleteRoutes) == 0 && len(s.AddRoutes) == 0 &&
		s.sourcesMatch()
}

func (s Steps) sourcesMatch() bool {
	return len(s.ChangeRoutes) == 0 && len(s.AddAddresses) == 0 && len(s.DeleteAddresses) == 0
}

func (s Steps) Without(routes []netip.Prefix) Steps {
	if len(routes) > 0 {
		s.AddRoutes, s.ChangeRoutes = Missing(s.AddRoutes, routes), Missing(s.ChangeRoutes, routes)
	}
	return s
}

// Cluster refuses a cluster name that no configuration can have: names of interfaces and key files are derived from
// it, and the agent must not change, or even read, anything by such a name.
func Cluster(name string) error {
	if !naming.IsClusterName(name) || !naming.IsDevice(naming.Device(name), naming.DeviceAlias(name)) {
		return fmt.Errorf("%q is not a cluster name", name)
	}
	return nil
}

// deviceSteps plans everything of a device except its peers: interface, key, port and the routes to subnets. port is
// the one in the node's own configuration, 0 for none. known is the existing device, or an empty one.
func deviceSteps(cluster string, want *semaphorev1.Device, port int, subnets []netip.Prefix, key wgtypes.Key,
	existing *kernel.Device) (s Steps, known *kernel.Device) {
	s = Steps{Name: naming.Device(cluster), Alias: naming.DeviceAlias(cluster), MTU: int(want.GetMtu())}
	badMTU, badPort := device(want, port)
	if badMTU != nil {
		s.Refused = append(s.Refused, badMTU.Error())
	}
	if s.MTU == 0 || badMTU != nil {
		s.MTU = DefaultMTU
	}
	if existing == nil {
		s.Create = true
		existing = &kernel.Device{Alias: s.Alias, MTU: s.MTU}
	}
	s.SetLink = !existing.Up || existing.Alias != s.Alias || existing.MTU != s.MTU

	var cfg wgtypes.Config
	if existing.PrivateKey != key {
		cfg.PrivateKey = &key
	}
	if port := int(want.GetListenPort()); badPort != nil {
		s.Refused = append(s.Refused, badPort.Error())
	} else if existing.ListenPort != port {
		cfg.ListenPort = &port
	}
	s.Config = notEmpty(cfg)
	s.Routed = subnets
	s.routes(subnets, existing)
	return s, existing
}

// notEmpty returns nil for a configuration that changes nothing.
func notEmpty(cfg wgtypes.Config) *wgtypes.Config {
	if cfg.PrivateKey == nil && cfg.ListenPort == nil && len(cfg.Peers) == 0 {
		return nil
	}
	return &cfg
}

// Network plans one device completely. existing is the node's device, nil for none. The cluster's name must have passed
// Cluster.
func Network(cluster string, want *Desired, bounds Bounds, key wgtypes.Key, existing *kernel.Device) Steps {
	subnets, refused, conflicts := Subnets(want.Device.GetPodSubnets(), bounds)
	programmed := newAppliedPeers(want, bounds, subnets)
	s, existing := deviceSteps(cluster, want.Device, bounds.port(), programmed.routed, key, existing)
	s.Refused, s.Conflicts = append(s.Refused, refused...), conflicts
	s.Applied = programmed
	var cfg wgtypes.Config
	if s.Config != nil {
		cfg = *s.Config
	}
	present, every := map[wgtypes.Key]bool{}, s.Applied.keepalive
	for i := range existing.Peers {
		p := &existing.Peers[i]
		present[p.PublicKey] = true
		switch is, ok := s.Applied.withKey(p.PublicKey); {
		case !ok, s.Applied.astray(is, p): // WireGuard cannot forget an endpoint; the next check adds the peer again
			cfg.Peers = append(cfg.Peers, wgtypes.PeerConfig{PublicKey: p.PublicKey, Remove: true})
		case !is.matches(p, every):
			cfg.Peers = append(cfg.Peers, is.config(every, kernel.EndpointOf(p), is.hasPrefixes(p)))
		}
	}
	for key := range s.Applied.keys.first {
		if is, ok := s.Applied.withKey(key); ok && !present[key] {
			cfg.Peers = append(cfg.Peers, is.config(every, netip.AddrPort{}, false))
		}
	}
	// Removals come last: a peer that gets another's prefix takes it over, so that the prefix always belongs to a peer.
	// Removing a peer removes only the prefixes that it still has.
	slices.SortFunc(cfg.Peers, func(a, b wgtypes.PeerConfig) int {
		if a.Remove != b.Remove {
			if b.Remove {
				return -1
			}
			return 1
		}
		return bytes.Compare(a.PublicKey[:], b.PublicKey[:])
	})
	s.Config = notEmpty(cfg)
	if want.Restored && !s.Create {
		s.restoring(existing)
	}
	return s
}

// Subnets returns the remote's subnets to route, why others are refused, and conflicts of those that remain routed, a
// line each.
func Subnets(all []string, bounds Bounds) (subnets []netip.Prefix, refused, conflicts []string) {
	if more := len(all) - maxSubnets; more > 0 {
		refused = append(refused, fmt.Sprintf("routes: %d subnets exceed the limit of %d: %s and the following are ignored",
			len(all), maxSubnets, all[maxSubnets]))
		all = all[:maxSubnets]
	}
	for _, text := range all {
		prefix, conflict, err := bounds.prefix(text)
		if err != nil {
			refused = append(refused, fmt.Sprintf("route %s: %v", text, err))
			continue
		}
		if conflict != "" {
			conflicts = append(conflicts, "route "+text+" remains, but "+conflict)
		}
		subnets = append(subnets, prefix)
	}
	return subnets, refused, conflicts
}

func (s *Steps) routes(subnets []netip.Prefix, existing *kernel.Device) {
	wanted := map[netip.Prefix]bool{}
	for _, prefix := range subnets {
		wanted[prefix] = true
	}
	// The kernel deletes routes when an interface goes down; Routes are the existing ones.
	for _, r := range existing.Routes {
		if !wanted[r] {
			s.DeleteRoutes = append(s.DeleteRoutes, r)
		} else if withoutRule(existing, r) {
			continue // packets do not find it; adding it again adds the missing rule
		}
		delete(wanted, r)
	}
	s.AddRoutes = slices.SortedFunc(maps.Keys(wanted), netip.Prefix.Compare)
}

// withoutRule reports whether the rule is missing that leads packets to a route of an existing device.
func withoutRule(existing *kernel.Device, r netip.Prefix) bool {
	if r.Addr().Is6() {
		return existing.UnruledV6
	}
	return existing.UnruledV4
}

type peer struct {
	key wgtypes.Key
	// endpoint is invalid for a node that calls: WireGuard sends to where its packets come from.
	endpoint netip.AddrPort
	prefixes []netip.Prefix
}

// parsePeer validates a peer. Only prefixes in a routed subnet count. A prefix in another subnet is ignored, as the
// subnet itself is refused, unless the peer has no other.
func parsePeer(p *semaphorev1.Peer, bounds Bounds, subnets []netip.Prefix) (out peer, err error) {
	if out.key, err = wgtypes.NewKey(p.GetWireguard().GetPublicKey()); err != nil {
		return out, fmt.Errorf("public key: %w", err)
	}
	if !p.GetWireguard().GetCalls() {
		if out.endpoint, err = netip.ParseAddrPort(p.GetWireguard().GetAddress()); err != nil {
			return out, fmt.Errorf("endpoint: %w", err)
		}
		if err := bounds.endpoint(out.endpoint); err != nil {
			return out, fmt.Errorf("endpoint: %w", err)
		}
	}
	var outside netip.Prefix
	for _, text := range p.GetAllowedIps() {
		prefix, err := bounds.possible(text)
		if err != nil {
			return out, fmt.Errorf("allowed IPs: %w", err)
		}
		switch {
		case !Inside(prefix, subnets):
			outside = prefix
		case !slices.Contains(out.prefixes, prefix):
			out.prefixes = append(out.prefixes, prefix)
		}
	}
	if outside.IsValid() && len(out.prefixes) == 0 {
		return out, fmt.Errorf("allowed IPs: %s is not in a routed pod subnet", outside)
	}
	return out, nil
}

// keepalive returns the interval of a peer on a device that has every. A node that calls keeps the session up itself,
// and WireGuard would begin a handshake every 5 s while it does not know where to send it.
func (p peer) keepalive(every time.Duration) time.Duration {
	if !p.endpoint.IsValid() {
		return 0
	}
	return every
}

// config returns the configuration of a peer that was set to an endpoint, invalid for none. One that keeps its allowed
// IPs is only updated, as packets would be dropped while these change. Its fields have the types that reading a device
// returns.
func (p peer) config(every time.Duration, was netip.AddrPort, keeps bool) wgtypes.PeerConfig {
	keepalive := p.keepalive(every)
	c := wgtypes.PeerConfig{
		PublicKey: p.key, UpdateOnly: keeps, ReplaceAllowedIPs: !keeps, PersistentKeepaliveInterval: &keepalive,
	}
	// The endpoint of a node that calls is never written, nor one that does not change, from which the peer may have
	// roamed.
	if p.endpoint.IsValid() && p.endpoint != was {
		c.Endpoint = net.UDPAddrFromAddrPort(p.endpoint)
	}
	if !keeps {
		for _, prefix := range p.prefixes {
			c.AllowedIPs = append(c.AllowedIPs, *kernel.IPNet(prefix))
		}
	}
	return c
}

func (p peer) matches(is *wgtypes.Peer, every time.Duration) bool {
	return (!p.endpoint.IsValid() || kernel.EndpointOf(is) == p.endpoint) &&
		is.PersistentKeepaliveInterval == p.keepalive(every) && p.hasPrefixes(is)
}

func (p peer) hasPrefixes(is *wgtypes.Peer) bool {
	if len(is.AllowedIPs) != len(p.prefixes) {
		return false
	}
	for i := range is.AllowedIPs {
		if !slices.Contains(p.prefixes, kernel.PrefixOf(&is.AllowedIPs[i])) {
			return false
		}
	}
	return true
}
