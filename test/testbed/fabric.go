package testbed

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/test/testbed/netns"
)

// fabricBridge is the name of the bridge in the fabric's namespace. All nodes are ports of it.
const fabricBridge = "fabric0"

// nodeInterface is the name of a node's interface to the fabric.
const nodeInterface = "eth0"

// createFabric creates a namespace with a bridge. Forwarding is off in the namespace, so packets that a node sends to
// its default route end here, for example packets to a remote pod without a specific route.
func createFabric(id string, dual bool) (*netns.Namespace, error) {
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
	prefixes := []netip.Prefix{fabricPrefix}
	if dual {
		prefixes = append(prefixes, fabricPrefix6)
	}
	for _, p := range prefixes {
		gateway := netip.PrefixFrom(p.Addr().Next(), p.Bits())
		// addressFlags disables duplicate address detection, so that the IPv6 address is usable immediately.
		if err := links.AddrAdd(bridge,
			&netlink.Addr{IPNet: ipNet(gateway), Flags: addressFlags(gateway.Addr())}); err != nil {
			return nil, fmt.Errorf("give %s to %s: %w", gateway, fabricBridge, err)
		}
	}
	if err := links.LinkSetUp(bridge); err != nil {
		return nil, fmt.Errorf("bring up %s: %w", fabricBridge, err)
	}
	return ns, nil
}

// connect creates a namespace and connects it to the fabric with a veth pair, addresses and default routes. port is the
// name of the end on the bridge. connect skips invalid addresses.
func connect(fabric *netns.Namespace, name, port string, ips ...netip.Addr) (_ *netns.Namespace, err error) {
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
		PeerName:  nodeInterface, PeerNamespace: netlink.NsFd(int(file.Fd())), PeerHardwareAddr: hardwareAddress(ips[0]),
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
	if err := here.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("bring up %s of %s: %w", nodeInterface, name, err)
	}
	for _, ip := range ips {
		if !ip.IsValid() {
			continue
		}
		network := fabricPrefix
		if ip.Is6() {
			network = fabricPrefix6
		}
		address := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(ip, network.Bits())), Flags: addressFlags(ip)}
		if err := here.AddrAdd(link, address); err != nil {
			return nil, fmt.Errorf("give %s to %s: %w", ip, name, err)
		}
		gateway := network.Addr().Next()
		if err := here.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.AsSlice()}); err != nil {
			return nil, fmt.Errorf("route of %s to %s: %w", name, gateway, err)
		}
	}
	return ns, nil
}

// disconnect removes a port of the fabric together with the interface at its other end. A missing port is no error.
func disconnect(fabric *netns.Namespace, port string) error {
	links, err := fabric.Netlink()
	if err != nil {
		return err
	}
	defer links.Close()
	link, err := links.LinkByName(port)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find port %s of the fabric: %w", port, err)
	}
	if err := links.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove port %s of the fabric: %w", port, err)
	}
	return nil
}

// hardwareAddress derives a locally administered MAC address from an IPv4 address. A node keeps its MAC address over a
// reboot, and the neighbor caches of other nodes stay valid.
func hardwareAddress(ip netip.Addr) net.HardwareAddr {
	a := ip.As4()
	return net.HardwareAddr{0x02, 0x5b, a[0], a[1], a[2], a[3]}
}

func addressFlags(ip netip.Addr) int {
	if ip.Is6() {
		return unix.IFA_F_NODAD
	}
	return 0
}

// setSysctls sets sysctls below net/ inside a namespace. /proc/sys/net belongs to the namespace of the thread that
// opens it.
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
