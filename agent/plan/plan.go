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
	"regexp"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/desired"
	"github.com/kube-semaphore/semaphore/agent/routing"
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
	// ChangeRoutes stand with another source than that of Sources.
	ChangeRoutes []netip.Prefix
	// AddAddresses are those of Sources that the device lacks, DeleteAddresses those that it has besides.
	AddAddresses, DeleteAddresses []netip.Addr
	Sources                       Sources
	// Refused are settings and routes of the device that are wanted and not done, RefusedPeers such peers, and why,
	// a line each.
	Refused, RefusedPeers []string
	// Conflicts are what of this node is in the way of subnets that stay routed all the same, a line each.
	Conflicts []string
	// Contradictions are what contradicts itself in what is wanted, and how they were resolved, a line each: what they
	// came to is done.
	Contradictions []string
	// subnets are those that are routed once the steps are done.
	subnets []netip.Prefix
	// Applied is the network as it is once the steps are done, for changes of single peers.
	Applied *AppliedPeers
}

// Empty says that everything stands as wanted.
func (s Steps) Empty() bool {
	return !s.Create && !s.SetLink && s.Config == nil && len(s.DeleteRoutes) == 0 && len(s.AddRoutes) == 0 && s.sourcesStand()
}

func (s Steps) sourcesStand() bool {
	return len(s.ChangeRoutes) == 0 && len(s.AddAddresses) == 0 && len(s.DeleteAddresses) == 0
}

// Routed are the subnets that are routed once the steps are done.
func (s Steps) Routed() []netip.Prefix { return s.subnets }

// Without are the steps but for adding and changing some routes.
func (s Steps) Without(routes []netip.Prefix) Steps {
	if len(routes) > 0 {
		among := func(r netip.Prefix) bool { return slices.Contains(routes, r) }
		s.AddRoutes = slices.DeleteFunc(slices.Clone(s.AddRoutes), among)
		s.ChangeRoutes = slices.DeleteFunc(slices.Clone(s.ChangeRoutes), among)
	}
	return s
}

// clusterName is the rule of configurations: names of interfaces and key files are made of it.
var clusterName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)

// Cluster refuses a cluster name that no configuration can have. Nothing may be done, or even
// looked at, in the name of such a one.
func Cluster(name string) error {
	if !clusterName.MatchString(name) || !naming.IsDevice(naming.Device(name), naming.DeviceAlias(name)) {
		return fmt.Errorf("%q is no cluster name", name)
	}
	return nil
}

// deviceSteps plans what there is of a device besides its peers: interface, key, port and the routes to subnets. port
// is the one that the node's own configuration has, 0 for none. known is the device as it stands, or one that has
// nothing.
func deviceSteps(cluster string, want *semaphorev1.Device, port int, subnets []netip.Prefix, key wgtypes.Key, stands *wireguard.Device) (s Steps, known *wireguard.Device) {
	s = Steps{Name: naming.Device(cluster), Alias: naming.DeviceAlias(cluster), MTU: int(want.GetMtu())}
	badMTU, badPort := device(want, port)
	if badMTU != nil {
		s.Refused = append(s.Refused, badMTU.Error())
	}
	if s.MTU == 0 || badMTU != nil {
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
	if port := int(want.GetListenPort()); badPort != nil {
		s.Refused = append(s.Refused, badPort.Error())
	} else if stands.ListenPort != port {
		cfg.ListenPort = &port
	}
	if cfg.PrivateKey != nil || cfg.ListenPort != nil {
		s.Config = &cfg
	}
	s.subnets = subnets
	s.routes(subnets, stands)
	return s, stands
}

// Network plans one device as a whole. stands is nil when there is none. The cluster's name must
// have passed Cluster.
func Network(cluster string, want *desired.Network, bounds Bounds, key wgtypes.Key, stands *wireguard.Device) Steps {
	subnets, refused, conflicts := Subnets(want, bounds)
	programmed := remember(want, bounds, subnets)
	s, stands := deviceSteps(cluster, want.Device, bounds.port(), programmed.routed, key, stands)
	s.Refused, s.Conflicts = append(s.Refused, refused...), conflicts
	s.Applied = programmed
	s.RefusedPeers, s.Contradictions = s.Applied.Refused(), s.Applied.Contradictions()
	var cfg wgtypes.Config
	if s.Config != nil {
		cfg = *s.Config
	}
	peers := s.Applied.configs()
	present := map[wgtypes.Key]bool{}
	for _, p := range stands.Peers {
		present[p.PublicKey] = true
		if wanted, ok := peers[p.PublicKey]; !ok {
			cfg.Peers = append(cfg.Peers, wgtypes.PeerConfig{PublicKey: p.PublicKey, Remove: true})
		} else if !same(p, wanted) {
			cfg.Peers = append(cfg.Peers, differing(p, wanted))
		}
	}
	for k, p := range peers {
		if !present[k] {
			cfg.Peers = append(cfg.Peers, p)
		}
	}
	// What goes goes last: a peer that has another's prefix from now on takes it, and at no moment has nobody got it.
	// To remove a peer takes away only what it still has.
	slices.SortFunc(cfg.Peers, func(a, b wgtypes.PeerConfig) int {
		if a.Remove != b.Remove {
			if b.Remove {
				return -1
			}
			return 1
		}
		return bytes.Compare(a.PublicKey[:], b.PublicKey[:])
	})
	if cfg.PrivateKey != nil || cfg.ListenPort != nil || len(cfg.Peers) > 0 {
		s.Config = &cfg
	}
	if want.Restored && !s.Create {
		s.restoring(stands)
	}
	return s
}

// Subnets are those of the remote that are routed, why others are not, and what is in the way of those that are all the
// same, a line each.
func Subnets(want *desired.Network, bounds Bounds) (subnets []netip.Prefix, refused, conflicts []string) {
	all := want.Device.GetPodSubnets()
	if more := len(all) - mostSubnets; more > 0 {
		refused = append(refused, fmt.Sprintf("routes: %d subnets, and %d are the most: %s and what follows is left out", len(all), mostSubnets, all[mostSubnets]))
		all = all[:mostSubnets]
	}
	for _, text := range all {
		prefix, conflict, err := bounds.prefix(text)
		if err != nil {
			refused = append(refused, fmt.Sprintf("route %s: %v", text, err))
			continue
		}
		if conflict != "" {
			conflicts = append(conflicts, "route "+text+" stays, and "+conflict)
		}
		subnets = append(subnets, prefix)
	}
	return subnets, refused, conflicts
}

func (s *Steps) routes(subnets []netip.Prefix, stands *wireguard.Device) {
	wanted := map[netip.Prefix]bool{}
	for _, prefix := range subnets {
		wanted[prefix] = true
	}
	// The kernel forgets routes when an interface goes down; Routes tells what is there.
	for _, r := range stands.Routes {
		if !wanted[r] {
			s.DeleteRoutes = append(s.DeleteRoutes, r)
		} else if unruled(stands, r) {
			continue // it leads nowhere; to add it adds what is missing
		}
		delete(wanted, r)
	}
	s.AddRoutes = slices.SortedFunc(maps.Keys(wanted), netip.Prefix.Compare)
}

// unruled says whether no packet finds a route of a standing device.
func unruled(stands *wireguard.Device, r netip.Prefix) bool {
	if r.Addr().Is6() {
		return stands.UnruledV6
	}
	return stands.UnruledV4
}

// peer is what the broker says of a peer, checked.
type peer struct {
	key      wgtypes.Key
	endpoint netip.AddrPort
	prefixes []netip.Prefix
}

// parsePeer reads a peer, of which those prefixes count that lie in a subnet that is routed. One that lies in another
// is the subnet's matter, which is refused itself, but for a peer that has none left.
func parsePeer(p *semaphorev1.Peer, bounds Bounds, subnets []netip.Prefix) (out peer, err error) {
	if out.key, err = wgtypes.NewKey(p.GetWireguard().GetPublicKey()); err != nil {
		return out, fmt.Errorf("public key: %w", err)
	}
	if out.endpoint, err = netip.ParseAddrPort(p.GetWireguard().GetAddress()); err != nil {
		return out, fmt.Errorf("endpoint: %w", err)
	}
	if err := bounds.Endpoint(out.endpoint); err != nil {
		return out, fmt.Errorf("endpoint: %w", err)
	}
	var outside netip.Prefix
	for _, text := range p.GetAllowedIps() {
		prefix, err := bounds.possible(text)
		if err != nil {
			return out, fmt.Errorf("allowed IPs: %w", err)
		}
		switch {
		case !within(prefix, subnets):
			outside = prefix
		case !slices.Contains(out.prefixes, prefix):
			out.prefixes = append(out.prefixes, prefix)
		}
	}
	if outside.IsValid() && len(out.prefixes) == 0 {
		return out, fmt.Errorf("allowed IPs: %s is in no pod subnet that is routed", outside)
	}
	return out, nil
}

// config sets all of a peer. Its fields have the types of what reads of devices return.
func (p peer) config(keepalive time.Duration) wgtypes.PeerConfig {
	c := wgtypes.PeerConfig{
		PublicKey:                   p.key,
		Endpoint:                    net.UDPAddrFromAddrPort(p.endpoint),
		ReplaceAllowedIPs:           true,
		PersistentKeepaliveInterval: &keepalive,
	}
	for _, prefix := range p.prefixes {
		c.AllowedIPs = append(c.AllowedIPs, *routing.IPNet(prefix))
	}
	return c
}

// same says whether a peer stands as it is wanted.
func same(stands wgtypes.Peer, want wgtypes.PeerConfig) bool {
	return stands.Endpoint != nil && unmap(stands.Endpoint) == unmap(want.Endpoint) &&
		stands.PersistentKeepaliveInterval == *want.PersistentKeepaliveInterval &&
		slices.Equal(sorted(stands.AllowedIPs), sorted(want.AllowedIPs))
}

// differing is what makes a standing peer the one that is wanted. Allowed IPs that are right are not set again: while
// they are replaced, packets have no way.
func differing(stands wgtypes.Peer, want wgtypes.PeerConfig) wgtypes.PeerConfig {
	if slices.Equal(sorted(stands.AllowedIPs), sorted(want.AllowedIPs)) {
		want.UpdateOnly, want.ReplaceAllowedIPs, want.AllowedIPs = true, false, nil
	}
	return want
}

// unmap has one form for an IPv4 address, which net.UDPAddr has two for.
func unmap(a *net.UDPAddr) netip.AddrPort {
	at := a.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

func sorted(ips []net.IPNet) []string {
	out := make([]string, len(ips))
	for i := range ips {
		out[i] = ips[i].String()
	}
	slices.Sort(out)
	return out
}
