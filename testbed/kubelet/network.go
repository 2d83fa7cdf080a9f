//go:build linux

package kubelet

import (
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"

	"github.com/kube-semaphore/semaphore/testbed/netns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// gateway is the next hop of every pod in Calico's layout. It is no one's address: the host side of the veth answers ARP
// for it (proxy_arp), which the kernel does only where the node has a default route.
var gateway = netip.MustParseAddr("169.254.1.1")

// hostMAC is the address of every host-side veth in Calico's layout.
var hostMAC = net.HardwareAddr{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}

// machine is a node of the cluster with its free pod addresses.
type machine struct {
	Node
	mu        sync.Mutex // guards addresses
	addresses *addresses
}

func (m *machine) takeAddress(want netip.Addr) (netip.Addr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.addresses.take(want)
}

func (m *machine) giveBackAddress(ip netip.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.addresses.giveBack(ip)
}

// VethName is the name of the host side of a pod's veth, by which Felix finds the pod's interface.
func VethName(namespace, pod string) string {
	sum := sha1.Sum([]byte(namespace + "." + pod))
	return "cali" + hex.EncodeToString(sum[:])[:11]
}

// netnsName is the name of a pod's network namespace. A name that would be too long for a file is cut, and told from
// others by a digest.
func netnsName(prefix, namespace, pod string) string {
	name := prefix + namespace + "." + pod
	if len(name) > 200 {
		sum := sha1.Sum([]byte(name))
		name = name[:180] + "." + hex.EncodeToString(sum[:8])
	}
	return name
}

// podNetwork is a pod's own network namespace and how it is joined to the node's.
type podNetwork struct {
	node  *machine
	netns *netns.Namespace
	veth  string
	ip    netip.Addr
}

// connectPod makes a pod's network as Calico's CNI plugin does: a /32 address, a veth to the node, routes on both sides.
// Nothing is left when it fails.
func connectPod(node *machine, nsName, veth string, ip netip.Addr, mtu int) (_ *podNetwork, err error) {
	ns, err := netns.Create(nsName)
	if err != nil {
		return nil, err
	}
	n := &podNetwork{node: node, netns: ns, veth: veth, ip: ip}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.disconnect())
		}
	}()
	if err := n.addVeth(mtu); err != nil {
		return nil, fmt.Errorf("make veth %s: %w", veth, err)
	}
	if err := n.setUpPod(); err != nil {
		return nil, fmt.Errorf("set up pod side of %s: %w", veth, err)
	}
	if err := n.setUpNode(); err != nil {
		return nil, fmt.Errorf("set up node side of %s: %w", veth, err)
	}
	return n, nil
}

func (n *podNetwork) addVeth(mtu int) error {
	links, err := n.node.Netns.Netlink()
	if err != nil {
		return err
	}
	defer links.Close()
	pod, err := os.Open(n.netns.Path())
	if err != nil {
		return err
	}
	defer pod.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = n.veth, mtu, hostMAC
	return links.LinkAdd(&netlink.Veth{
		LinkAttrs: attrs, PeerName: "eth0", PeerMTU: uint32(mtu), PeerNamespace: netlink.NsFd(int(pod.Fd())),
	})
}

func (n *podNetwork) setUpPod() error {
	links, err := n.netns.Netlink()
	if err != nil {
		return err
	}
	defer links.Close()
	eth0, err := links.LinkByName("eth0")
	if err != nil {
		return err
	}
	if err := links.AddrAdd(eth0, &netlink.Addr{IPNet: hostNet(n.ip)}); err != nil {
		return fmt.Errorf("add %s: %w", n.ip, err)
	}
	if err := links.LinkSetUp(eth0); err != nil {
		return err
	}
	index := eth0.Attrs().Index
	for _, route := range []*netlink.Route{
		{LinkIndex: index, Dst: hostNet(gateway), Scope: netlink.SCOPE_LINK},
		{LinkIndex: index, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Gw: gateway.AsSlice()},
	} {
		if err := links.RouteAdd(route); err != nil {
			return fmt.Errorf("add route to %s: %w", route.Dst, err)
		}
	}
	// As container runtimes set them: every process may ping and use low ports.
	return writeSysctls(n.netns, map[string]string{
		"net.ipv4.ping_group_range":           "0 2147483647",
		"net.ipv4.ip_unprivileged_port_start": "0",
	})
}

func (n *podNetwork) setUpNode() error {
	conf, neigh := "net.ipv4.conf."+n.veth+".", "net.ipv4.neigh."+n.veth+"."
	err := writeSysctls(n.node.Netns, map[string]string{
		conf + "forwarding": "1", conf + "proxy_arp": "1", conf + "rp_filter": "0", conf + "route_localnet": "1",
		neigh + "proxy_delay": "0", // else the first packet of a pod waits up to 0.8 s
	})
	if err != nil {
		return err
	}
	links, err := n.node.Netns.Netlink()
	if err != nil {
		return err
	}
	defer links.Close()
	host, err := links.LinkByName(n.veth)
	if err != nil {
		return err
	}
	if err := links.LinkSetUp(host); err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: host.Attrs().Index, Dst: hostNet(n.ip), Scope: netlink.SCOPE_LINK}
	if err := links.RouteReplace(route); err != nil {
		return fmt.Errorf("add route to %s: %w", route.Dst, err)
	}
	return nil
}

// disconnect removes the veth, with it the routes, and the namespace. It may be called again after an error.
func (n *podNetwork) disconnect() error {
	links, err := n.node.Netns.Netlink()
	if err == nil {
		defer links.Close()
		var link netlink.Link
		if link, err = links.LinkByName(n.veth); err == nil {
			err = links.LinkDel(link)
		}
	}
	if errors.As(err, &netlink.LinkNotFoundError{}) || errors.Is(err, unix.ENODEV) || errors.Is(err, os.ErrNotExist) {
		err = nil // gone, or the node's namespace is
	}
	if err != nil {
		err = fmt.Errorf("remove veth %s: %w", n.veth, err)
	}
	return errors.Join(err, n.netns.Delete())
}

// writeSysctls sets kernel parameters by their dotted names in a network namespace. Slashes and dots are exchanged as
// sysctl(8) does, so an interface's name may not have dots; VethName has none.
func writeSysctls(ns *netns.Namespace, values map[string]string) error {
	return ns.Do(func() error {
		for name, value := range values {
			// /proc/sys/net shows the network namespace of the thread that looks.
			path := "/proc/sys/" + strings.ReplaceAll(name, ".", "/")
			if err := os.WriteFile(path, []byte(value), 0); err != nil {
				return fmt.Errorf("set %s: %w", name, err)
			}
		}
		return nil
	})
}

func hostNet(ip netip.Addr) *net.IPNet {
	return &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}
}

func netHostPort(ip string, port int) string {
	return net.JoinHostPort(ip, fmt.Sprint(port))
}
