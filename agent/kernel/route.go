package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Route is a route of a table, with the fields that the agent uses.
type Route struct {
	Prefix          netip.Prefix
	Table, Metric   int
	Type, Protocol  int
	Link            int
	Source, Gateway netip.Addr
	// Several means that it leads to more than one next hop.
	Several bool
}

// nextHopObject is RTA_NH_ID, see ip-nexthop(8).
const nextHopObject = 30

// RouteFilter selects routes; a zero field selects any.
type RouteFilter struct{ Family, Link, Protocol, Type int }

// Each calls f with each route of the table that the filter selects; of all tables if t has no ID. It fails if the
// kernel does not list them.
func (t RoutingTable) Each(filter RouteFilter, f func(Route)) error {
	for _, family := range families {
		if filter.Family != 0 && filter.Family != family {
			continue
		}
		if err := t.each(family, filter, f); err != nil {
			if filter.Link != 0 && errors.Is(err, unix.ENODEV) {
				continue // the link was deleted meanwhile, and its routes with it
			}
			return fmt.Errorf("routes of %s: %w", familyName(family), err)
		}
	}
	return nil
}

func (t RoutingTable) each(family int, filter RouteFilter, f func(Route)) error {
	header := &nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family), Protocol: uint8(filter.Protocol),
		Type: uint8(filter.Type)}}
	request := dumpRequest{Type: unix.RTM_GETROUTE, Answer: unix.RTM_NEWROUTE, Header: header}
	if t.ID != 0 {
		request.Attributes = append(request.Attributes, nl.NewRtAttr(unix.RTA_TABLE, nl.Uint32Attr(uint32(t.ID))))
	}
	if filter.Link != 0 {
		request.Attributes = append(request.Attributes, nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(filter.Link))))
	}
	var damaged error
	err := dump(request, func(message []byte) {
		r, ok, err := parse(message)
		if err != nil {
			damaged = err
			return
		}
		if ok && (t.ID == 0 || r.Table == t.ID) && (filter.Link == 0 || r.Link == filter.Link) &&
			(filter.Protocol == 0 || r.Protocol == filter.Protocol) && (filter.Type == 0 || r.Type == filter.Type) {
			f(r)
		}
	})
	// There is no such table; or a route changed meanwhile, which is an event, too.
	if errors.Is(err, unix.ENOENT) || lacksFamily(err) || errors.Is(err, nl.ErrDumpInterrupted) {
		return damaged
	}
	return errors.Join(err, damaged)
}

// parse parses a message; ok is false if that is no route, such as a learned path MTU.
func parse(m []byte) (r Route, ok bool, err error) {
	if len(m) < unix.SizeofRtMsg {
		return r, false, errors.New("a message is too short")
	}
	// struct rtmsg, rtnetlink(7).
	family, bits, flags := m[0], int(m[1]), binary.NativeEndian.Uint32(m[8:])
	if flags&unix.RTM_F_CLONED != 0 {
		return r, false, nil
	}
	r.Table, r.Protocol, r.Type = int(m[4]), int(m[5]), int(m[7])
	to := netip.IPv4Unspecified()
	if family == unix.AF_INET6 {
		to = netip.IPv6Unspecified()
	}
	err = EachAttribute(m[unix.SizeofRtMsg:], func(kind uint16, value []byte) {
		switch kind {
		case unix.RTA_DST:
			if addr, valid := netip.AddrFromSlice(value); valid {
				to = addr
			}
		case unix.RTA_PREFSRC:
			r.Source, _ = netip.AddrFromSlice(value)
		case unix.RTA_GATEWAY:
			r.Gateway, _ = netip.AddrFromSlice(value)
		case unix.RTA_VIA:
			if len(value) > 2 {
				r.Gateway, _ = netip.AddrFromSlice(value[2:])
			}
		case unix.RTA_MULTIPATH, nextHopObject:
			r.Several = true
		}
		if len(value) == 4 {
			n := int(binary.NativeEndian.Uint32(value))
			switch kind {
			case unix.RTA_TABLE:
				r.Table = n
			case unix.RTA_PRIORITY:
				r.Metric = n
			case unix.RTA_OIF:
				r.Link = n
			}
		}
	})
	r.Prefix = netip.PrefixFrom(to, bits)
	return r, r.Prefix.IsValid(), err
}

// message returns the route as requests about it have it.
func (r Route) message() *netlink.Route {
	route := &netlink.Route{
		Dst: IPNet(r.Prefix), Table: r.Table, Priority: r.Metric, Type: r.Type, Protocol: netlink.RouteProtocol(r.Protocol),
		LinkIndex: r.Link, Src: r.Source.AsSlice(), Gw: r.Gateway.AsSlice(),
	}
	if r.Type == unix.RTN_UNICAST && r.Prefix.Addr().Is4() && !r.Gateway.IsValid() {
		route.Scope = netlink.SCOPE_LINK // IPv6 has no other than that of the universe
	}
	return route
}

// Add adds the route; one that exists is no error. It fails if the kernel refuses.
func (r Route) Add() error {
	if err := netlink.RouteAdd(r.message()); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%s: %w", r.Name(), err)
	}
	return nil
}

// Delete deletes the route; one that does not exist is no error. It fails if the kernel refuses.
func (r Route) Delete() error {
	route := r.message()
	route.Src, route.Scope = nil, netlink.SCOPE_NOWHERE // matches any scope in a deletion
	if r.Type != unix.RTN_UNICAST {
		route.LinkIndex = 0 // the kernel lists IPv6's with loopback, but deletes them only without it
	}
	if err := netlink.RouteDel(route); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("deleting %s: %w", r.Name(), err)
	}
	return nil
}

// Name describes a route in messages: its type, its prefix and its table.
func (r Route) Name() string {
	what := "route "
	if r.Type == unix.RTN_UNREACHABLE {
		what = "unreachable route "
	}
	if r.Table == unix.RT_TABLE_MAIN {
		return what + r.Prefix.String()
	}
	return what + r.Prefix.String() + " of table " + strconv.Itoa(r.Table)
}

// Text describes a route nearly as ip-route(8) does, without its prefix.
func (r Route) Text() string {
	text := ""
	if r.Gateway.IsValid() {
		text += "via " + r.Gateway.String() + " "
	}
	if r.Link != 0 {
		name := strconv.Itoa(r.Link)
		if link, err := netlink.LinkByIndex(r.Link); err == nil {
			name = link.Attrs().Name
		}
		text += "dev " + name + " "
	}
	if r.Type != unix.RTN_UNICAST {
		text += fmt.Sprintf("type %d ", r.Type)
	}
	return text + "proto " + netlink.RouteProtocol(r.Protocol).String()
}
