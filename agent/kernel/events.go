package kernel

import (
	"context"
	"encoding/binary"
	"log/slog"
	"net/netip"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// eventBuffer is the kernel's buffer for events in bytes: thousands of events.
const eventBuffer = 4 << 20

// Event is one change that the kernel reports, possibly made by this process. Only the fields that apply are set.
type Event struct {
	// Interface was created, changed or deleted, has other addresses, or lost a route of the agent.
	Interface string
	// Route is the destination of a route in the agent's table, its own or another's, that was created, changed or
	// deleted.
	Route netip.Prefix
	// Addresses of the node have changed, except those of serviceInterface; or Settings of net.ipv4.conf or
	// net.ipv6.conf; or Rules of the agent, or that lead to its table.
	Addresses, Settings, Rules bool
}

// Watch calls changed when the kernel reports a change that may concern the agent's devices and routes, which are in
// the given table, until ctx ends. The first call is about what may have changed before. missed is called when events
// were lost: anything may have changed then. Neither may block. It returns ctx's error, or fails if the kernel sends no
// events.
func Watch(ctx context.Context, table RoutingTable, changed func(Event), missed func()) error {
	source := EventSource{
		Name: "interfaces and routes", Protocol: unix.NETLINK_ROUTE, Filter: noPodRoutes(), Buffer: eventBuffer,
		Groups: []uint{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
			unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF,
			unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE},
	}
	var once sync.Once
	r := reader{table: table, names: map[int]string{}}
	return FollowEvents(ctx, source, func(messages []syscall.NetlinkMessage) {
		if len(messages) == 0 {
			changed(Event{Addresses: true, Settings: true, Rules: true})
		}
		for _, m := range messages {
			if e := r.eventOf(m); e != (Event{}) {
				changed(e)
			}
		}
	}, func() {
		once.Do(func() {
			slog.Warn("the kernel dropped events because they were not read fast enough; the agent checks everything, now and " +
				"whenever this happens again")
		})
		missed()
	})
}

// calicoProtocol is the protocol of routes that Felix adds, one for each pod of the node (RTPROT_CALICO in its code).
const calicoProtocol = 80

// noPodRoutes filters out Calico's routes to the pods of this node, which change all the time, and the local table.
// See struct rtmsg in rtnetlink(7).
func noPodRoutes() []bpf.Instruction {
	const (
		tableAt    = unix.SizeofNlMsghdr + 4
		protocolAt = unix.SizeofNlMsghdr + 5
	)
	return []bpf.Instruction{
		EventType,
		IfEventType(unix.RTM_NEWROUTE, 1, 0),
		IfEventType(unix.RTM_DELROUTE, 0, 4),
		bpf.LoadAbsolute{Off: tableAt, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.RT_TABLE_LOCAL, SkipTrue: 3},
		bpf.LoadAbsolute{Off: protocolAt, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: calicoProtocol, SkipTrue: 1},
		TakeEvent,
		DropEvent,
	}
}

type reader struct {
	table RoutingTable
	// names of interfaces that have or had addresses, by index.
	names map[int]string
}

// name returns the name of an interface; empty for a deleted one.
func (r *reader) name(index int) string {
	name, known := r.names[index]
	if !known {
		if link, err := netlink.LinkByIndex(index); err == nil {
			name = link.Attrs().Name
			r.names[index] = name
		}
	}
	return name
}

// eventOf returns the event of a message; zero if it does not concern the agent.
func (r *reader) eventOf(m syscall.NetlinkMessage) Event {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(m.Data) < unix.SizeofIfInfomsg {
			return Event{}
		}
		delete(r.names, int(binary.NativeEndian.Uint32(m.Data[4:]))) // its name may have changed
		return Event{Interface: nl.BytesToString(attribute(m.Data[unix.SizeofIfInfomsg:], unix.IFLA_IFNAME))}
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return r.routeEvent(m.Data)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		// Every interface has a link-local address, and the agent uses none.
		const scopeAt, indexAt = 3, 4
		if len(m.Data) < unix.SizeofIfAddrmsg || m.Data[scopeAt] == unix.RT_SCOPE_LINK {
			return Event{}
		}
		name := r.name(int(binary.NativeEndian.Uint32(m.Data[indexAt:])))
		if name == serviceInterface {
			return Event{}
		}
		return Event{Addresses: true, Interface: name}
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		if len(m.Data) < unix.SizeofRtMsg {
			return Event{}
		}
		attributes := m.Data[unix.SizeofRtMsg:]
		of, protocol := attribute(attributes, unix.RTA_TABLE), attribute(attributes, nl.FRA_PROTOCOL)
		ours := len(of) == 4 && int(binary.NativeEndian.Uint32(of)) == r.table.ID || len(protocol) == 1 &&
			protocol[0] == RouteProtocol
		return Event{Rules: ours}
	case unix.RTM_NEWNETCONF:
		return Event{Settings: true}
	}
	return Event{}
}

func (r *reader) routeEvent(data []byte) (e Event) {
	route, ok, err := parse(data)
	ours := route.Table == r.table.ID
	if err != nil || !ok || !ours && route.Table != unix.RT_TABLE_MAIN {
		return Event{}
	}
	// The kernel reports IPv6's unreachable routes with loopback.
	if route.Link != 0 && route.Type == unix.RTN_UNICAST && (ours || route.Protocol == RouteProtocol) {
		// If the interface was deleted, too, its own message reports that.
		if link, err := netlink.LinkByIndex(route.Link); err == nil {
			e.Interface = link.Attrs().Name
		}
	}
	if ours {
		e.Route = route.Prefix
	}
	return e
}

// attribute returns the value of an attribute; nil for none.
func attribute(data []byte, kind uint16) (found []byte) {
	_ = EachAttribute(data, func(is uint16, value []byte) {
		if is == kind {
			found = value
		}
	})
	return found
}
