package wireguard

import (
	"context"
	"encoding/binary"
	"log/slog"
	"net/netip"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/agent/netevents"
)

// eventBuffer is how much the kernel keeps for us while we are busy: thousands of events.
const eventBuffer = 4 << 20

// Event is one change that the kernel tells of, perhaps our own. Of its fields those that apply are set.
type Event struct {
	// Interface is one that was made, changed or deleted, or into which a route of ours led that was.
	Interface string
	// Route is the destination of a route of the main table, ours or another's, that was made, changed or deleted.
	Route netip.Prefix
	// Addresses of the node have changed, or Settings of net.ipv4.conf or net.ipv6.conf.
	Addresses, Settings bool
}

// Watch calls changed whenever the kernel tells that something was changed or deleted that can matter to our
// devices and routes, until ctx ends. missed is called when events were lost: anything may have changed then. Neither
// may wait.
func Watch(ctx context.Context, changed func(Event), missed func()) error {
	source := netevents.Source{
		Name: "interfaces and routes", Protocol: unix.NETLINK_ROUTE, Filter: noPodRoutes(), Buffer: eventBuffer,
		Groups: []uint{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
			unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF},
	}
	var once sync.Once
	return netevents.Follow(ctx, source, func(messages []syscall.NetlinkMessage) {
		for _, m := range messages {
			if e := eventOf(m); e != (Event{}) {
				changed(e)
			}
		}
	}, func() {
		once.Do(func() {
			slog.Warn("the kernel has more to tell than we take in; looking at everything, now and whenever it happens again")
		})
		missed()
	})
}

// calicoProtocol is that of the routes that Felix makes, one for each pod of the node (RTPROT_CALICO in its code).
const calicoProtocol = 80

// noPodRoutes has the kernel tell nothing of Calico's routes to the pods of this node, which come and go all the time,
// nor of the local table. See struct rtmsg in rtnetlink(7).
func noPodRoutes() []unix.SockFilter {
	const (
		tableAt    = unix.SizeofNlMsghdr + 4
		protocolAt = unix.SizeofNlMsghdr + 5
	)
	return []unix.SockFilter{
		netevents.Load16(netevents.TypeAt),
		netevents.Equal(netevents.Loaded(unix.RTM_NEWROUTE), 1, 0),
		netevents.Equal(netevents.Loaded(unix.RTM_DELROUTE), 0, 4),
		netevents.Load8(tableAt),
		netevents.Equal(unix.RT_TABLE_LOCAL, 3, 0),
		netevents.Load8(protocolAt),
		netevents.Equal(calicoProtocol, 1, 0),
		netevents.Take,
		netevents.Drop,
	}
}

// eventOf is what a message tells; zero for nothing that can matter.
func eventOf(m syscall.NetlinkMessage) Event {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(m.Data) < unix.SizeofIfInfomsg {
			return Event{}
		}
		return Event{Interface: nl.BytesToString(attribute(m.Data[unix.SizeofIfInfomsg:], unix.IFLA_IFNAME))}
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return routeEvent(m.Data)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		// Every interface has a link-local address, and none of ours is one.
		const scopeAt = 3
		return Event{Addresses: len(m.Data) >= unix.SizeofIfAddrmsg && m.Data[scopeAt] != unix.RT_SCOPE_LINK}
	case unix.RTM_NEWNETCONF:
		return Event{Settings: true}
	}
	return Event{}
}

func routeEvent(data []byte) Event {
	if len(data) < unix.SizeofRtMsg {
		return Event{}
	}
	// struct rtmsg, rtnetlink(7).
	length, table, protocol, flags := data[1], data[4], data[5], binary.NativeEndian.Uint32(data[8:])
	if table != unix.RT_TABLE_MAIN || flags&unix.RTM_F_CLONED != 0 {
		return Event{}
	}
	var e Event
	if addr, ok := netip.AddrFromSlice(attribute(data[unix.SizeofRtMsg:], unix.RTA_DST)); ok && int(length) <= addr.BitLen() {
		e.Route = netip.PrefixFrom(addr, int(length))
	}
	if index := attribute(data[unix.SizeofRtMsg:], unix.RTA_OIF); protocol == RouteProtocol && len(index) == 4 {
		// When the interface has gone as well, its own message says so.
		if link, err := netlink.LinkByIndex(int(binary.NativeEndian.Uint32(index))); err == nil {
			e.Interface = link.Attrs().Name
		}
	}
	return e
}

// attribute is the value of the first attribute of a kind; nil for none.
func attribute(data []byte, kind uint16) []byte {
	for len(data) >= unix.SizeofRtAttr {
		length := int(binary.NativeEndian.Uint16(data))
		if length < unix.SizeofRtAttr || length > len(data) {
			return nil
		}
		if binary.NativeEndian.Uint16(data[2:]) == kind {
			return data[unix.SizeofRtAttr:length]
		}
		data = data[min((length+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1), len(data)):]
	}
	return nil
}
