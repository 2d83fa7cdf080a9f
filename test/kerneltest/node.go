// Package kerneltest is a node without a kernel: devices, routes and a guard in memory, for tests of the agent's
// policy.
//
// A Node does what a kernel does as far as the policy observes it, records each change, and fails where a test requests
// it. Facts that only a kernel can show, such as packets, handshakes and routes of other programs, are for tests on
// nodes. Only tests import it.
package kerneltest

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/guard"
	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/status"
)

// Node is a node with its Kernel, for device, hostnet and lookup, and its Guard, for hostnet. The zero value has no
// device. It is safe for concurrent use.
type Node struct {
	mu      sync.Mutex
	devices map[string]*kernel.Device
	guarded map[string]guard.Remote
	unset   map[string]guard.Remote // guards whose Set failed
	failing map[string]error
	calls   []string
}

// Fail makes calls of a method, such as "AddRoute", fail from now on; with a nil error they succeed again.
func (n *Node) Fail(method string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.failing == nil {
		n.failing = map[string]error{}
	}
	n.failing[method] = err
}

// Calls returns the changes since the last call of Calls, such as "Create wireguard.c2", also those that failed.
func (n *Node) Calls() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	calls := n.calls
	n.calls = nil
	return calls
}

// Change changes a device as another program does, without an event for the agent; nil for one that does not exist.
func (n *Node) Change(name string, change func(*kernel.Device)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(n.devices[name])
}

// Put creates a device as another program does.
func (n *Node) Put(d *kernel.Device) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.devices == nil {
		n.devices = map[string]*kernel.Device{}
	}
	n.devices[d.Name] = d
}

// Guarded returns the guarded pod subnets of a cluster; nil for a cluster that the guard does not know.
func (n *Node) Guarded(cluster string) []netip.Prefix { return n.Guard().Subnets(cluster) }

// do records a change and makes it, unless it must fail.
func (n *Node) do(method, object string, change func() error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, strings.TrimSpace(method+" "+object))
	if err := n.failing[method]; err != nil {
		return err
	}
	return change()
}

// on is do for a device that must exist.
func (n *Node) on(method, name, detail string, change func(*kernel.Device)) error {
	return n.do(method, strings.TrimSpace(name+" "+detail), func() error {
		d := n.devices[name]
		if d == nil {
			return fmt.Errorf("interface %s: %w", name, fs.ErrNotExist)
		}
		change(d)
		return nil
	})
}

// Device returns a copy, as a kernel does.
func (n *Node) Device(name string) (*kernel.Device, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.failing["Device"]; err != nil || n.devices[name] == nil {
		return nil, err
	}
	d := *n.devices[name]
	d.Peers = slices.Clone(d.Peers)
	for i := range d.Peers {
		d.Peers[i].AllowedIPs = slices.Clone(d.Peers[i].AllowedIPs)
	}
	d.Routes, d.Addresses, d.Sources = slices.Clone(d.Routes), slices.Clone(d.Addresses), maps.Clone(d.Sources)
	return &d, nil
}

func (n *Node) Links() ([]kernel.Link, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	links := []kernel.Link{{Name: "eth0"}}
	for _, name := range slices.Sorted(maps.Keys(n.devices)) {
		links = append(links, kernel.Link{Name: name, Alias: n.devices[name].Alias})
	}
	return links, n.failing["Links"]
}

// RouteTo implements lookup.Kernel: the device with the longest route.
func (n *Node) RouteTo(to, _ netip.Addr) (link string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	best := -1
	for name, d := range n.devices {
		for _, p := range d.Routes {
			if p.Contains(to) && p.Bits() > best {
				best, link = p.Bits(), name
			}
		}
	}
	if best < 0 {
		return "eth0", n.failing["RouteTo"]
	}
	return link, n.failing["RouteTo"]
}

func (n *Node) Create(_ context.Context, name, alias string, mtu int) error {
	return n.do("Create", name, func() error {
		if n.devices == nil {
			n.devices = map[string]*kernel.Device{}
		}
		n.devices[name] = &kernel.Device{
			Name: name, Alias: alias, MTU: mtu, Backend: kernel.InKernel, Sources: map[netip.Prefix]netip.Addr{},
		}
		return nil
	})
}

func (n *Node) Delete(name string) error {
	return n.do("Delete", name, func() error { delete(n.devices, name); return nil })
}

func (n *Node) SetLink(name, alias string, mtu int, up bool) error {
	return n.on("SetLink", name, "", func(d *kernel.Device) { d.Alias, d.MTU, d.Up = alias, mtu, up })
}

func (n *Node) Configure(name string, cfg wgtypes.Config) error {
	return n.on("Configure", name, "", func(d *kernel.Device) {
		if cfg.PrivateKey != nil {
			d.PrivateKey, d.PublicKey = *cfg.PrivateKey, cfg.PrivateKey.PublicKey()
		}
		if cfg.ListenPort != nil {
			d.ListenPort = *cfg.ListenPort
		}
		for _, p := range cfg.Peers {
			configurePeer(d, p)
		}
	})
}

func configurePeer(d *kernel.Device, cfg wgtypes.PeerConfig) {
	i := slices.IndexFunc(d.Peers, func(p wgtypes.Peer) bool { return p.PublicKey == cfg.PublicKey })
	switch {
	case cfg.Remove:
		if i >= 0 {
			d.Peers = slices.Delete(d.Peers, i, i+1)
		}
		return
	case i < 0 && cfg.UpdateOnly:
		return
	case i < 0:
		d.Peers = append(d.Peers, wgtypes.Peer{PublicKey: cfg.PublicKey})
		i = len(d.Peers) - 1
	}
	p := &d.Peers[i]
	if cfg.Endpoint != nil {
		p.Endpoint = cfg.Endpoint
	}
	if cfg.PersistentKeepaliveInterval != nil {
		p.PersistentKeepaliveInterval = *cfg.PersistentKeepaliveInterval
	}
	if cfg.ReplaceAllowedIPs {
		p.AllowedIPs = nil
	}
	p.AllowedIPs = append(p.AllowedIPs, cfg.AllowedIPs...)
}

func (n *Node) AddAddress(name string, addr netip.Addr) error {
	return n.on("AddAddress", name, addr.String(), func(d *kernel.Device) {
		d.Addresses = append(d.Addresses, addr)
	})
}

func (n *Node) DeleteAddress(name string, addr netip.Addr) error {
	return n.on("DeleteAddress", name, addr.String(), func(d *kernel.Device) {
		d.Addresses = slices.DeleteFunc(d.Addresses, func(a netip.Addr) bool { return a == addr })
	})
}

func (n *Node) AddRoute(name string, prefix netip.Prefix, source netip.Addr) error {
	return n.route("AddRoute", name, prefix, source)
}

func (n *Node) ReplaceRoute(name string, prefix netip.Prefix, source netip.Addr) error {
	return n.route("ReplaceRoute", name, prefix, source)
}

func (n *Node) route(method, name string, prefix netip.Prefix, source netip.Addr) error {
	return n.on(method, name, prefix.String(), func(d *kernel.Device) {
		if !slices.Contains(d.Routes, prefix) {
			d.Routes = append(d.Routes, prefix)
		}
		if source.IsValid() {
			d.Sources[prefix] = source
		}
	})
}

func (n *Node) DeleteRoute(name string, prefix netip.Prefix) error {
	return n.on("DeleteRoute", name, prefix.String(), func(d *kernel.Device) {
		d.Routes = slices.DeleteFunc(d.Routes, func(r netip.Prefix) bool { return r == prefix })
		delete(d.Sources, prefix)
	})
}

// The node has no routes, links or settings but those of its devices and eth0.

func (n *Node) Strays(string, []netip.Prefix) ([]kernel.Route, error) { return nil, nil }

func (n *Node) DeleteStray(kernel.Route) error { return nil }

func (n *Node) EgressLinks(to []netip.Addr) ([]kernel.EgressLink, error) {
	var links []kernel.EgressLink
	for _, at := range to {
		links = append(links, kernel.EgressLink{To: at, Link: "eth0", MTU: 1500})
	}
	return links, nil
}

func (n *Node) LoosenFilter(name string) error {
	return n.on("LoosenFilter", name, "", func(*kernel.Device) {})
}

func (n *Node) StrictFilters([]string) ([]string, error) { return nil, nil }

func (n *Node) Addresses() ([]kernel.Address, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	own := kernel.Address{Interface: "eth0", Prefix: netip.MustParsePrefix("192.0.2.1/24"), Usable: true}
	return []kernel.Address{own}, n.failing["Addresses"]
}

func (n *Node) Elsewhere(string, []netip.Prefix) (bool, error) { return false, nil }

func (n *Node) Foreign(func(netip.Prefix) bool) ([]kernel.Foreign, error) { return nil, nil }

func (n *Node) Settings([]kernel.RoutedDevice) (kernel.Settings, error) {
	return kernel.Settings{}, nil
}

func (n *Node) LacksWireGuard() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.failing["LacksWireGuard"]; err != nil {
		return err.Error()
	}
	return ""
}

// Guard is the node's guard.
func (n *Node) Guard() *Guard { return &Guard{n} }

// Guard records which remotes are guarded. It implements hostnet.Guard.
type Guard struct{ node *Node }

func (g *Guard) Clusters() []string {
	g.node.mu.Lock()
	defer g.node.mu.Unlock()
	return slices.Sorted(maps.Keys(g.node.guarded))
}

func (g *Guard) Subnets(cluster string) []netip.Prefix {
	g.node.mu.Lock()
	defer g.node.mu.Unlock()
	return slices.Clone(g.node.guarded[cluster].Subnets)
}

func (g *Guard) Set(cluster string, r guard.Remote) (changed bool, err error) {
	err = g.node.do("Guard", cluster, func() error {
		changed = !slices.Equal(g.node.guarded[cluster].Subnets, r.Subnets)
		g.node.set(cluster, r)
		return nil
	})
	g.node.mu.Lock()
	defer g.node.mu.Unlock()
	if err != nil {
		if g.node.unset == nil {
			g.node.unset = map[string]guard.Remote{}
		}
		g.node.unset[cluster] = r
	}
	return changed, err
}

// set sets a guard. It must be called with mu held.
func (n *Node) set(cluster string, r guard.Remote) {
	if n.guarded == nil {
		n.guarded = map[string]guard.Remote{}
	}
	n.guarded[cluster] = r
	delete(n.unset, cluster)
}

func (g *Guard) Remove(cluster string) (changed bool, err error) {
	err = g.node.do("Unguard", cluster, func() error {
		_, changed = g.node.guarded[cluster]
		delete(g.node.guarded, cluster)
		delete(g.node.unset, cluster)
		return nil
	})
	return changed, err
}

// Restore implements hostnet.Guard: it sets guards whose Set failed. No other program changes this guard.
func (g *Guard) Restore(bool) (changed bool, err error) {
	g.node.mu.Lock()
	defer g.node.mu.Unlock()
	if err := g.node.failing["Guard"]; err != nil {
		return false, err
	}
	for cluster, r := range g.node.unset {
		g.node.set(cluster, r)
		changed = true
	}
	return changed, nil
}

// Counts implements hostnet.Guard: no packet is ever counted.
func (g *Guard) Counts() (map[string]status.GuardCount, error) { return nil, nil }
