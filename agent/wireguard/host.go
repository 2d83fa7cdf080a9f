// Package wireguard is the agent's hands: WireGuard devices, their peers and routes on the
// node it runs on, in the kernel or in userspace behind the same calls.
//
// It does what it is told and decides nothing. Whoever calls it has made sure that names
// and prefixes are ones the agent may touch.
package wireguard

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

	"github.com/kube-semaphore/semaphore/agent/routing"
)

// Backends of a device.
const (
	Kernel    = "kernel"
	Userspace = "userspace"
)

// Queue length and MTU as semaphore-wireguard and wg-quick(8) set them.
const (
	txQueueLen = 1000
	DefaultMTU = 1420
)

// Host is the node. It is not safe for concurrent use, but for Device and Close.
type Host struct {
	wg atomic.Pointer[wgctrl.Client]
	// backend is auto, kernel or userspace.
	backend string
	// carrier is the socket of whoever starts the processes of userspace devices; empty for this process itself.
	carrier string
	table   routing.Table
}

// NewHost opens what is needed to program the node. backend is auto (the kernel's WireGuard
// where there is one, else wireguard-go), kernel or userspace.
func NewHost(backend string) (*Host, error) {
	client, err := wgctrl.New()
	if err != nil {
		return nil, fmt.Errorf("WireGuard control: %w", err)
	}
	h := &Host{backend: backend, table: routing.Default()}
	h.wg.Store(client)
	return h, nil
}

// SetUserspaceLauncher has the processes of userspace devices started by the one who serves a socket with ServeUserspace,
// so that they do not end with the container of this one. It is called before the first Create.
func (h *Host) SetUserspaceLauncher(socket string) { h.carrier = socket }

// UseTable has routes made in another table than the default. It is called before anything else.
func (h *Host) UseTable(t routing.Table) { h.table = t }

// Close lets go of the node and leaves it as it is.
func (h *Host) Close() error { return h.wg.Load().Close() }

// lookAgain has devices of the kernel found whose module was loaded after this Host was made: a client looks for it
// when it is opened, and holds nothing where there is none.
func (h *Host) lookAgain(name string) error {
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

// Device is a device as it stands.
type Device struct {
	Name, Alias, Backend string
	Index, MTU           int
	Up                   bool
	// PrivateKey is what the device has, for comparison with the key file.
	PrivateKey, PublicKey wgtypes.Key
	ListenPort            int
	Peers                 []wgtypes.Peer
	// Routes into the device that are in our table and bear our protocol number, and the preferred source addresses of
	// those that have one.
	Routes  []netip.Prefix
	Sources map[netip.Prefix]netip.Addr
	// UnruledV4 and UnruledV6 say that the rule is missing by which packets of that family find our table.
	UnruledV4, UnruledV6 bool
	// Addresses of the device that are alone in their subnet, but for link-local ones.
	Addresses []netip.Addr
}

// Device reads a device. It is nil when there is none; that is no error.
func (h *Host) Device(name string) (*Device, error) {
	link, err := findLink(name)
	if link == nil || err != nil {
		return nil, err
	}
	d, err := h.wg.Load().Device(name)
	if err != nil {
		// It may have been deleted between the two looks.
		if link, again := findLink(name); link == nil && again == nil {
			return nil, nil
		}
		return nil, fmt.Errorf("interface %s is there and does not answer as a WireGuard device: %w", name, err)
	}
	attrs := link.Attrs()
	out := &Device{
		Name: name, Alias: attrs.Alias, Backend: Userspace, Index: attrs.Index, MTU: attrs.MTU, Up: attrs.Flags&net.FlagUp != 0,
		PrivateKey: d.PrivateKey, PublicKey: d.PublicKey, ListenPort: d.ListenPort, Peers: d.Peers,
	}
	if d.Type == wgtypes.LinuxKernel {
		out.Backend = Kernel
	}
	out.Sources = map[netip.Prefix]netip.Addr{}
	err = h.table.Each(routing.Filter{Link: attrs.Index, Protocol: routing.Protocol, Type: unix.RTN_UNICAST}, func(r routing.Route) {
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

// findLink is nil when there is no interface of that name.
func findLink(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	return link, nil
}

// Create makes a device, down and with no key: nothing passes it yet.
func (h *Host) Create(ctx context.Context, name, alias string, mtu int) error {
	if h.backend != Userspace {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU, attrs.TxQLen = name, mtu, txQueueLen
		err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs})
		switch {
		case err == nil:
			return errors.Join(h.lookAgain(name), h.SetLink(name, alias, mtu, false))
		case errors.Is(err, unix.EOPNOTSUPP) && h.backend != Kernel:
			// "Unknown device type": this kernel has no WireGuard.
		default:
			return fmt.Errorf("making WireGuard device %s: %w", name, err)
		}
	}
	start := func(ctx context.Context, name string, mtu int) error {
		return startUserspace(ctx, h.wg.Load(), name, mtu)
	}
	if h.carrier != "" {
		start = carrierClient(h.carrier).start
	}
	if err := start(ctx, name, mtu); err != nil {
		return fmt.Errorf("making userspace WireGuard device %s: %w", name, err)
	}
	return h.SetLink(name, alias, mtu, false)
}

// SetLink sets what ip-link(8) would.
func (h *Host) SetLink(name, alias string, mtu int, up bool) error {
	link, err := findLink(name)
	if err != nil {
		return err
	}
	if link == nil {
		return fmt.Errorf("interface %s: %w", name, fs.ErrNotExist)
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
			upErr = fmt.Errorf("its listen port is taken by someone else: %w", upErr)
		}
		err = errors.Join(err, upErr)
	}
	if err != nil {
		return fmt.Errorf("setting interface %s: %w", name, err)
	}
	return nil
}

// Configure changes what cfg names of a device and leaves the rest. A listen port that is taken is EADDRINUSE, and a
// device that stands keeps the one it has.
func (h *Host) Configure(name string, cfg wgtypes.Config) error {
	var before *wgtypes.Device
	if cfg.ListenPort != nil && answers(name) {
		before, _ = h.wg.Load().Device(name) // one that does not answer will say so below
	}
	err := plain(h.wg.Load().ConfigureDevice(name, cfg))
	switch {
	case err == nil:
		return nil
	case cfg.ListenPort != nil && errors.Is(err, unix.EADDRINUSE):
		err = fmt.Errorf("listen port %d is taken by someone else: %w", *cfg.ListenPort, err)
		if before != nil && before.ListenPort != 0 {
			// wireguard-go lets go of the old port first, and then hears nothing.
			err = errors.Join(err, plain(h.wg.Load().ConfigureDevice(name, wgtypes.Config{ListenPort: &before.ListenPort})))
		}
	}
	return fmt.Errorf("configuring WireGuard device %s: %w", name, err)
}

// Delete takes a device out; with it go its peers and routes, and in userspace its process and socket.
func (h *Host) Delete(name string) error {
	link, err := findLink(name)
	if link == nil || err != nil {
		return err
	}
	if err := netlink.LinkDel(link); err != nil {
		return fmt.Errorf("deleting interface %s: %w", name, err)
	}
	// A process ends within milliseconds; one that was killed has left its socket.
	for range 400 {
		if !answers(name) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	_, err = RemoveDeadSocket(name)
	return err
}

// Link is the name and alias of an interface.
type Link struct{ Name, Alias string }

// Links are all interfaces of the node.
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
