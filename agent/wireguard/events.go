package wireguard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
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
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
	if err != nil {
		return fmt.Errorf("watching interfaces and routes: %w", err)
	}
	defer context.AfterFunc(ctx, s.Close)()
	defer s.Close()
	if err := noPodRoutes(s.GetFd()); err != nil {
		return fmt.Errorf("watching routes: %w", err)
	}
	if err := s.SetReceiveBufferSize(eventBuffer, true); err != nil {
		slog.Warn("the kernel's events get a small buffer", "error", err)
	}
	var once sync.Once
	for {
		messages, from, err := s.Receive()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			once.Do(func() {
				slog.Warn("the kernel has more to tell than we take in; looking at everything, now and whenever it happens again")
			})
			missed()
			continue
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("watching interfaces and routes: %w", err)
		case from.Pid != nl.PidKernel:
			continue
		}
		for _, m := range messages {
			if e := eventOf(m); e != (Event{}) {
				changed(e)
			}
		}
	}
}

// calicoProtocol is that of the routes that Felix makes, one for each pod of the node (RTPROT_CALICO in its code).
const calicoProtocol = 80

// noPodRoutes has the kernel tell nothing of Calico's routes to the pods of this node, which come and go all the time,
// nor of the local table. See netlink(7), SO_ATTACH_FILTER in socket(7), struct nlmsghdr and struct rtmsg.
func noPodRoutes(fd int) error {
	const (
		typeAt     = 4
		tableAt    = unix.SizeofNlMsghdr + 4
		protocolAt = unix.SizeofNlMsghdr + 5
	)
	statement := func(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }
	equal := func(k uint32, then, otherwise uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: then, Jf: otherwise}
	}
	filter := []unix.SockFilter{
		statement(unix.BPF_LD|unix.BPF_H|unix.BPF_ABS, typeAt),
		equal(networkOrder(unix.RTM_NEWROUTE), 1, 0),
		equal(networkOrder(unix.RTM_DELROUTE), 0, 4),
		statement(unix.BPF_LD|unix.BPF_B|unix.BPF_ABS, tableAt),
		equal(unix.RT_TABLE_LOCAL, 3, 0),
		statement(unix.BPF_LD|unix.BPF_B|unix.BPF_ABS, protocolAt),
		equal(calicoProtocol, 1, 0),
		statement(unix.BPF_RET|unix.BPF_K, 1<<31), // the whole message
		statement(unix.BPF_RET|unix.BPF_K, 0),     // none of it
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// networkOrder is how a filter, which reads in network order, sees a number of the kernel's order.
func networkOrder(n uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, n)))
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
