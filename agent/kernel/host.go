// Package kernel reads and changes the network of a node: WireGuard devices, their peers, addresses and routes, in the
// kernel or in userspace behind the same calls, and the files of their private keys.
//
// It owns the agent's part of the node's routing: a table of its own, and the rules by which packets are looked up in
// it before the main one. Routing daemons learn from the main table and write to it; they neither announce nor override
// the routes of another table. See docs/paths.md#routes. Of the settings of the kernel (sysctl) that decide whether a
// node forwards packets it only reports obstacles: they belong to the operator, and to kubelet. The kernel's
// Documentation/networking/ip-sysctl.rst explains them.
//
// Lists and events come by netlink, and the kernel filters them: a node can have tens of thousands of routes and
// addresses that do not concern the agent.
//
// The package decides nothing. Its caller has checked that names and prefixes are ones that the agent may touch.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

const (
	InKernel    = "kernel"
	InUserspace = "userspace"
)

// txQueueLen is the queue length of a device, as semaphore-wireguard and wg-quick(8) set it.
const txQueueLen = 1000

// Host is the node. It is not safe for concurrent use, except Device and Close.
type Host struct {
	wg                atomic.Pointer[wgctrl.Client]
	backend, launcher string
	table             RoutingTable
}

// NewHost opens the interfaces to program the node. backend is auto (the kernel's WireGuard if it has it, else
// wireguard-go), kernel or userspace. launcher is the socket of another process, which serves it with ServeUserspace:
// it starts the processes of userspace devices, so that they do not end with this container; empty for this process
// itself. It fails if WireGuard's control interface cannot be opened.
func NewHost(backend, launcher string, table RoutingTable) (*Host, error) {
	client, err := wgctrl.New()
	if err != nil {
		return nil, fmt.Errorf("WireGuard control: %w", err)
	}
	h := &Host{backend: backend, launcher: launcher, table: table}
	h.wg.Store(client)
	return h, nil
}

// Close closes WireGuard's control interface, and returns the error of that.
func (h *Host) Close() error { return h.wg.Load().Close() }

// reopenForKernel opens a new client if the kernel's module was loaded after this Host was made: a client looks for it
// only when it is opened.
func (h *Host) reopenForKernel(name string) error {
	if _, err := h.wg.Load().Device(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	client, err := wgctrl.New()
	if err != nil {
		return fmt.Errorf("WireGuard control: %w", err)
	}
	if _, err := client.Device(name); err != nil {
		return errors.Join(err, client.Close())
	}
	return h.wg.Swap(client).Close()
}

type Device struct {
	Name, Alias, Backend string
	Index, MTU           int
	Up                   bool
	// PrivateKey is the device's key, for comparison with the key file.
	PrivateKey, PublicKey wgtypes.Key
	ListenPort            int
	Peers                 []wgtypes.Peer
	// Routes into the device in the agent's table with its protocol number, and the preferred source addresses of
	// those that have one.
	Routes  []netip.Prefix
	Sources map[netip.Prefix]netip.Addr
	// UnruledV4 and UnruledV6 mean that the rule is missing that leads packets of that family to the agent's table.
	UnruledV4, UnruledV6 bool
	// Addresses of the device that are alone in their subnet, except link-local ones.
	Addresses []netip.Addr
}

// EndpointOf returns where a device sends to for a peer; invalid for nowhere. wgctrl has IPv4 addresses of userspace
// devices as IPv4-mapped ones.
func EndpointOf(p *wgtypes.Peer) netip.AddrPort {
	if p.Endpoint == nil {
		return netip.AddrPort{}
	}
	at := p.Endpoint.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// Device reads a device; nil, and no error, if it does not exist. It fails if it is no WireGuard device or cannot be
// read.
func (h *Host) Device(name string) (*Device, error) {
	link, err := findLink(name)
	if link == nil || err != nil {
		return nil, err
	}
	d, err := h.wg.Load().Device(name)
	if err != nil {
		// It may have been deleted between the two reads.
		if link, again := findLink(name); link == nil && again == nil {
			return nil, nil
		}
		return nil, fmt.Errorf("interface %s exists and does not answer as a WireGuard device: %w", name, err)
	}
	attrs := link.Attrs()
	out := &Device{
		Name: name, Alias: attrs.Alias, Backend: InUserspace, Index: attrs.Index, MTU: attrs.MTU,
		Up:         attrs.Flags&net.FlagUp != 0,
		PrivateKey: d.PrivateKey, PublicKey: d.PublicKey, ListenPort: d.ListenPort, Peers: d.Peers,
	}
	if d.Type == wgtypes.LinuxKernel {
		out.Backend = InKernel
	}
	out.Sources = map[netip.Prefix]netip.Addr{}
	err = h.table.Each(RouteFilter{Link: attrs.Index, Protocol: RouteProtocol, Type: unix.RTN_UNICAST},
		func(r Route) {
			out.Routes = append(out.Routes, r.Prefix)
			if r.Source.IsValid() {
				out.Sources[r.Prefix] = r.Source
			}
		})
	if err != nil {
		return nil, err
	}
	for family, unruled := range map[int]*bool{netlink.FAMILY_V4: &out.UnruledV4, netlink.FAMILY_V6: &out.UnruledV6} {
		ruled, err := h.table.Ruled(family)
		if err != nil {
			return nil, err
		}
		*unruled = !ruled
	}
	if err := eachAddress(attrs.Index, func(_ int, a Address) {
		if at := a.Prefix.Addr(); a.Prefix.IsSingleIP() && !at.IsLinkLocalUnicast() {
			out.Addresses = append(out.Addresses, at)
		}
	}); err != nil {
		return nil, err
	}
	slices.SortFunc(out.Addresses, netip.Addr.Compare)
	slices.SortFunc(out.Routes, netip.Prefix.Compare)
	return out, nil
}

// findLink returns nil if no interface has that name.
func findLink(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	return link, nil
}

// existingLink returns an interface. The error is fs.ErrNotExist if there is none.
func existingLink(name string) (netlink.Link, error) {
	link, err := findLink(name)
	if err == nil && link == nil {
		err = fmt.Errorf("interface %s: %w", name, fs.ErrNotExist)
	}
	return link, err
}

// Create creates a device, down and without a key: no packet passes it yet. It fails if the kernel has no WireGuard and
// wireguard-go cannot run, or an interface has the name.
func (h *Host) Create(ctx context.Context, name, alias string, mtu int) error {
	if h.backend != InUserspace {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU, attrs.TxQLen = name, mtu, txQueueLen
		err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs})
		switch {
		case err == nil:
			return errors.Join(h.reopenForKernel(name), h.SetLink(name, alias, mtu, false))
		case errors.Is(err, unix.EOPNOTSUPP) && h.backend != InKernel:
			// "Unknown device type": this kernel has no WireGuard.
		default:
			return fmt.Errorf("creating WireGuard device %s: %w", name, err)
		}
	}
	if why := h.LacksWireGuard(); why != "" {
		return fmt.Errorf("creating WireGuard device %s: %s", name, why)
	}
	var err error
	if h.launcher != "" {
		err = requestUserspace(ctx, h.launcher, name, mtu)
	} else {
		err = startUserspace(ctx, h.wg.Load(), name, mtu)
	}
	if err != nil {
		return fmt.Errorf("creating userspace WireGuard device %s: %w", name, err)
	}
	return h.SetLink(name, alias, mtu, false)
}

// LacksWireGuard returns why this node can have no device, before one is desired; empty if it can. It makes no device:
// the question for the kernel's WireGuard loads its module, as the creation of a device does.
func (h *Host) LacksWireGuard() string {
	has := h.backend != InUserspace
	if has {
		_, err := netlink.GenlFamilyGet(unix.WG_GENL_NAME)
		has = !errors.Is(err, fs.ErrNotExist)
	}
	switch {
	case has || h.backend != InKernel && h.launcher != "":
		return ""
	case h.backend == InKernel:
		return "the kernel has no WireGuard, and backend is kernel"
	}
	fd, err := unix.Open(cloneDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
		return ""
	}
	no := "the kernel has no WireGuard"
	if h.backend == InUserspace {
		no = "backend is userspace"
	}
	return fmt.Sprintf("%s, and the agent has neither a container for userspace WireGuard nor %s (%v)", no, cloneDevice,
		err)
}

// SetLink sets alias, MTU and queue of a device, and brings it up if asked. It fails if there is no device, or for each
// of them that the kernel refuses, such as a listen port in use.
func (h *Host) SetLink(name, alias string, mtu int, up bool) error {
	link, err := existingLink(name)
	if err != nil {
		return err
	}
	attrs := link.Attrs()
	if attrs.Alias != alias {
		err = errors.Join(err, netlink.LinkSetAlias(link, alias))
	}
	if attrs.MTU != mtu {
		err = errors.Join(err, netlink.LinkSetMTU(link, mtu))
	}
	if attrs.TxQLen != txQueueLen {
		err = errors.Join(err, netlink.LinkSetTxQLen(link, txQueueLen))
	}
	if up && attrs.Flags&net.FlagUp == 0 {
		upErr := netlink.LinkSetUp(link)
		if errors.Is(upErr, unix.EADDRINUSE) { // the kernel's WireGuard listens from here on
			upErr = fmt.Errorf("its listen port is in use by another program: %w", upErr)
		}
		err = errors.Join(err, upErr)
	}
	if err != nil {
		return fmt.Errorf("setting interface %s: %w", name, err)
	}
	return nil
}

// Configure changes the fields of cfg that are set, and keeps the others. It fails if the device refuses them: with
// EADDRINUSE for a listen port that is in use, and an existing device keeps its port.
func (h *Host) Configure(name string, cfg wgtypes.Config) error {
	var before *wgtypes.Device
	if cfg.ListenPort != nil && isServed(name) {
		before, _ = h.wg.Load().Device(name) // a device that does not answer causes an error below
	}
	err := plain(h.wg.Load().ConfigureDevice(name, cfg))
	switch {
	case err == nil:
		return nil
	case cfg.ListenPort != nil && errors.Is(err, unix.EADDRINUSE):
		err = fmt.Errorf("listen port %d is in use by another program: %w", *cfg.ListenPort, err)
		if before != nil && before.ListenPort != 0 {
			// wireguard-go closes the old port first, and then receives nothing.
			err = errors.Join(err, plain(h.wg.Load().ConfigureDevice(name, wgtypes.Config{ListenPort: &before.ListenPort})))
		}
	}
	return fmt.Errorf("configuring WireGuard device %s: %w", name, err)
}

// Delete deletes a device, with it its peers and routes, and in userspace its process and socket. It fails if the
// kernel refuses; a device that does not exist is no error.
func (h *Host) Delete(name string) error {
	link, err := findLink(name)
	if link == nil || err != nil {
		return err
	}
	if err := netlink.LinkDel(link); err != nil {
		return fmt.Errorf("deleting interface %s: %w", name, err)
	}
	// The process ends within milliseconds; one that was killed has left its socket.
	for range 400 {
		if !isServed(name) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	_, err = RemoveDeadSocket(name)
	return err
}

type Link struct{ Name, Alias string }

// Links returns all interfaces. It fails if the kernel does not list them.
func (*Host) Links() ([]Link, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("interfaces: %w", err)
	}
	out := make([]Link, len(links))
	for i, l := range links {
		out[i] = Link{l.Attrs().Name, l.Attrs().Alias}
	}
	return out, nil
}
