package testbed

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/testbed/netns"
)

// fabricBridge is the name of the switch that joins all nodes, in the fabric's namespace.
const fabricBridge = "fabric0"

// nodeInterface is the name of a node's interface to the fabric.
const nodeInterface = "eth0"

// createFabric makes a namespace with a bridge in it. Nothing is forwarded there: packets that a node sends to its
// default route, as those for a remote pod without a route of their own, end here.
func createFabric(id string) (*netns.Namespace, error) {
	ns, err := netns.Create(namespacePrefix(id) + "fabric")
	if err != nil {
		return nil, err
	}
	links, err := ns.Netlink()
	if err != nil {
		return nil, err
	}
	defer links.Close()
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: fabricBridge}}
	if err := links.LinkAdd(bridge); err != nil {
		return nil, fmt.Errorf("make bridge %s: %w", fabricBridge, err)
	}
	gateway := netip.PrefixFrom(fabricPrefix.Addr().Next(), fabricPrefix.Bits())
	if err := links.AddrAdd(bridge, &netlink.Addr{IPNet: ipNet(gateway)}); err != nil {
		return nil, fmt.Errorf("give %s to %s: %w", gateway, fabricBridge, err)
	}
	if err := links.LinkSetUp(bridge); err != nil {
		return nil, fmt.Errorf("bring up %s: %w", fabricBridge, err)
	}
	return ns, nil
}

// connect gives a new namespace an interface on the fabric, with an address and a default route. port is the name of
// the other end, on the bridge.
func connect(fabric *netns.Namespace, name, port string, ip netip.Addr) (_ *netns.Namespace, err error) {
	ns, err := netns.Create(name)
	if err != nil {
		return nil, err
	}
	there, err := fabric.Netlink()
	if err != nil {
		return nil, err
	}
	defer there.Close()
	file, err := os.Open(ns.Path())
	if err != nil {
		return nil, err
	}
	defer file.Close()
	bridge, err := there.LinkByName(fabricBridge)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", fabricBridge, err)
	}
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: port, MasterIndex: bridge.Attrs().Index},
		PeerName:  nodeInterface, PeerNamespace: netlink.NsFd(int(file.Fd())),
	}
	if err := there.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("connect %s to the fabric: %w", name, err)
	}
	if err := there.LinkSetUp(veth); err != nil {
		return nil, fmt.Errorf("bring up %s: %w", port, err)
	}
	here, err := ns.Netlink()
	if err != nil {
		return nil, err
	}
	defer here.Close()
	link, err := here.LinkByName(nodeInterface)
	if err != nil {
		return nil, fmt.Errorf("find %s of %s: %w", nodeInterface, name, err)
	}
	if err := here.AddrAdd(link, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(ip, fabricPrefix.Bits()))}); err != nil {
		return nil, fmt.Errorf("give %s to %s: %w", ip, name, err)
	}
	if err := here.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("bring up %s of %s: %w", nodeInterface, name, err)
	}
	gateway := fabricPrefix.Addr().Next()
	if err := here.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.AsSlice()}); err != nil {
		return nil, fmt.Errorf("route of %s to %s: %w", name, gateway, err)
	}
	return ns, nil
}

// protocolStatic is the mark of routes that an administrator set up, as the nodes' routes to each other's pods are here:
// RTPROT_STATIC of rtnetlink(7).
const protocolStatic = unix.RTPROT_STATIC

// addRoute adds a route via another node.
func addRoute(ns *netns.Namespace, to netip.Prefix, via netip.Addr) error {
	links, err := ns.Netlink()
	if err != nil {
		return err
	}
	defer links.Close()
	err = links.RouteAdd(&netlink.Route{Dst: ipNet(to), Gw: via.AsSlice(), Protocol: protocolStatic})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("route of %s to %s via %s: %w", ns.Name(), to, via, err)
	}
	return nil
}

// setSysctls sets network parameters inside a namespace: /proc/sys/net shows the namespace of the thread that opens it.
func setSysctls(ns *netns.Namespace, values map[string]string) error {
	return ns.Do(func() error {
		for name, value := range values {
			if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
				return fmt.Errorf("set net/%s=%s in %s: %w", name, value, ns.Name(), err)
			}
		}
		return nil
	})
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
