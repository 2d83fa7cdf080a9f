package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// serviceInterface is where kube-proxy puts the address of every Service in its mode ipvs (DefaultDummyDevice in its
// code). These addresses are as many as there are Services, and say nothing about the node's location.
const serviceInterface = "kube-ipvs0"

type Address struct {
	Interface string
	// Prefix is the address with the length of its subnet.
	Prefix netip.Prefix
	// Usable means that packets can have it as a source: duplicate address detection has finished and found no other
	// node.
	Usable bool
}

// Addresses returns the addresses of the node's interfaces, without those of serviceInterface. It fails if the kernel
// does not list them. With netlink.ErrDumpInterrupted it returns them too, but some may be missing: an interface
// appeared or went meanwhile, which is no event of addresses.
func (h *Host) Addresses() ([]Address, error) {
	names := map[int]string{}
	var out []Address
	err := eachAddress(0, func(index int, a Address) {
		name, known := names[index]
		if !known {
			if link, err := netlink.LinkByIndex(index); err == nil {
				name = link.Attrs().Name
			}
			names[index] = name
		}
		if name != serviceInterface {
			a.Interface = name
			out = append(out, a)
		}
	})
	return out, err
}

// eachAddress calls f with each address of an interface, or of all for 0, and the interface's index. It fails as
// Addresses does.
func eachAddress(index int, f func(index int, a Address)) (interrupted error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		header := nl.NewIfAddrmsg(int(family))
		header.Index = uint32(index)
		err := dump(dumpRequest{Type: unix.RTM_GETADDR, Answer: unix.RTM_NEWADDR, Header: header},
			func(m []byte) {
				at, a, ok := parseAddress(m)
				if ok && (index == 0 || index == at) {
					f(at, a)
				}
			})
		switch {
		case lacksFamily(err):
		case errors.Is(err, nl.ErrDumpInterrupted) && index == 0:
			interrupted = err
		case errors.Is(err, nl.ErrDumpInterrupted), errors.Is(err, unix.ENODEV) && index != 0:
			// It is an event of the interface, or the interface was deleted meanwhile.
		case err != nil:
			return fmt.Errorf("list the node's addresses: %w", err)
		}
	}
	return interrupted
}

// parseAddress parses struct ifaddrmsg and its attributes, rtnetlink(7).
func parseAddress(m []byte) (index int, a Address, ok bool) {
	if len(m) < unix.SizeofIfAddrmsg {
		return 0, a, false
	}
	bits, flags := int(m[1]), uint32(m[2])
	var local, remote netip.Addr
	err := EachAttribute(m[unix.SizeofIfAddrmsg:], func(kind uint16, value []byte) {
		switch kind {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(value)
		case unix.IFA_ADDRESS:
			remote, _ = netip.AddrFromSlice(value)
		case unix.IFA_FLAGS:
			if len(value) == 4 {
				flags = binary.NativeEndian.Uint32(value)
			}
		}
	})
	switch {
	case !local.IsValid(): // IPv6 names it but on a link to a single peer
		local = remote
	case remote.IsValid() && remote != local: // then the length is that of the peer's
		bits = local.BitLen()
	}
	a.Prefix, a.Usable = netip.PrefixFrom(local, bits), flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == 0
	return int(binary.NativeEndian.Uint32(m[4:])), a, err == nil && a.Prefix.IsValid()
}

// Placeholder is the IPv4 dummy address (RFC 7600, section 4.8). A loose reverse path filter drops packets from a
// device without an IPv4 address, unless routes lead back into it (__fib_validate_source in Linux). Its scope is the
// host: neither routes nor MASQUERADE select it as a source, unless all.route_localnet is 1 (inet_select_addr), and
// several devices may have it.
var Placeholder = netip.AddrFrom4([4]byte{192, 0, 0, 8})

// AddAddress adds an address to a device; one that it has is no error. It fails if there is no device, or the kernel
// refuses.
func (h *Host) AddAddress(name string, addr netip.Addr) error {
	err := h.address(name, addr, netlink.AddrAdd)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// DeleteAddress removes an address from a device. With the last IPv4 address the kernel deletes all routes into the
// device (fib_disable_ip); those that do not need the address are added again immediately. Meanwhile the guard stops
// packets that would leave another way. It fails if there is no device, or the kernel refuses.
func (h *Host) DeleteAddress(name string, addr netip.Addr) error {
	link, err := existingLink(name)
	if err != nil {
		return err
	}
	var routes []Route
	if addr.Is4() {
		filter := RouteFilter{Family: netlink.FAMILY_V4, Link: link.Attrs().Index, Type: unix.RTN_UNICAST}
		err = RoutingTable{}.Each(filter, func(r Route) {
			if r.Source != addr && !r.Several {
				routes = append(routes, r)
			}
		})
	}
	if err == nil {
		err = h.address(name, addr, netlink.AddrDel)
	}
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return nil
	}
	for _, r := range routes {
		if failed := netlink.RouteReplace(r.message()); failed != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", r.Name(), failed))
		}
	}
	return err
}

func (h *Host) address(name string, addr netip.Addr, do func(netlink.Link, *netlink.Addr) error) error {
	link, err := existingLink(name)
	if err != nil {
		return err
	}
	a := &netlink.Addr{IPNet: IPNet(netip.PrefixFrom(addr, addr.BitLen()))}
	if addr.Is6() {
		a.Flags = unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE // no other host answers there, and there is no subnet to route
	}
	if addr == Placeholder {
		a.Scope = unix.RT_SCOPE_HOST
	}
	if err := do(link, a); err != nil {
		return fmt.Errorf("address %s of %s: %w", addr, name, err)
	}
	return nil
}
