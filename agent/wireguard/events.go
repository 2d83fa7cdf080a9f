package wireguard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// eventBuffer is how much the kernel keeps for us while we are busy: thousands of events.
const eventBuffer = 4 << 20

// Watch calls changed with the name of an interface whenever the kernel tells that it, or a route of
// ours, was changed or deleted, until ctx ends. Changes of our own are told, too. missed is called when
// events were lost: anything may have changed then. Neither may wait.
func Watch(ctx context.Context, changed func(name string), missed func()) error {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return fmt.Errorf("watching interfaces and routes: %w", err)
	}
	defer context.AfterFunc(ctx, s.Close)()
	defer s.Close()
	if err := onlyOurRoutes(s.GetFd()); err != nil {
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
			if name := subject(m); name != "" {
				changed(name)
			}
		}
	}
}

// onlyOurRoutes has the kernel tell nothing of routes that are not ours: a node with many pods changes its
// own all the time. See netlink(7), SO_ATTACH_FILTER in socket(7), struct nlmsghdr and struct rtmsg.
func onlyOurRoutes(fd int) error {
	const (
		typeAt     = 4
		protocolAt = unix.SizeofNlMsghdr + 5
	)
	statement := func(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }
	equal := func(k uint32, then, otherwise uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: then, Jf: otherwise}
	}
	filter := []unix.SockFilter{
		statement(unix.BPF_LD|unix.BPF_H|unix.BPF_ABS, typeAt),
		equal(networkOrder(unix.RTM_NEWROUTE), 1, 0),
		equal(networkOrder(unix.RTM_DELROUTE), 0, 2),
		statement(unix.BPF_LD|unix.BPF_B|unix.BPF_ABS, protocolAt),
		equal(RouteProtocol, 0, 1),
		statement(unix.BPF_RET|unix.BPF_K, 1<<31), // the whole message
		statement(unix.BPF_RET|unix.BPF_K, 0),     // none of it
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// networkOrder is how a filter, which reads in network order, sees a number of the kernel's order.
func networkOrder(n uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, n)))
}

// subject is the name of the interface that a message is about; empty for none, or none that is there.
func subject(m syscall.NetlinkMessage) string {
	skip, attribute := unix.SizeofIfInfomsg, uint16(unix.IFLA_IFNAME)
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		skip, attribute = unix.SizeofRtMsg, unix.RTA_OIF
	default:
		return ""
	}
	if len(m.Data) < skip {
		return ""
	}
	attributes, err := nl.ParseRouteAttr(m.Data[skip:])
	if err != nil {
		return ""
	}
	for _, a := range attributes {
		if a.Attr.Type != attribute {
			continue
		}
		if attribute == unix.IFLA_IFNAME {
			return nl.BytesToString(a.Value)
		}
		if len(a.Value) == 4 {
			// When the interface has gone as well, its own message says so.
			if link, err := netlink.LinkByIndex(int(binary.NativeEndian.Uint32(a.Value))); err == nil {
				return link.Attrs().Name
			}
		}
	}
	return ""
}
