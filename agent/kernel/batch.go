package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// answerTime bounds the wait for the kernel's answer.
const answerTime = 10 // seconds

// DeleteAddress deletes an IPv4 address of an interface and adds routes into it again: with the last address of an
// interface the kernel deletes all routes into it (fib_disable_ip). It is one message to the kernel, so that packets
// find no route for a few microseconds only, even on a busy machine.
func DeleteAddress(link int, addr netip.Addr, routes []Route) error {
	header := nl.NewIfAddrmsg(unix.AF_INET)
	header.Index, header.Prefixlen = uint32(link), uint8(addr.BitLen())
	first := nl.NewNetlinkRequest(unix.RTM_DELADDR, unix.NLM_F_ACK)
	first.AddData(header)
	first.AddData(nl.NewRtAttr(unix.IFA_LOCAL, addr.AsSlice()))
	first.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, addr.AsSlice()))
	requests, names := []*nl.NetlinkRequest{first}, []string{"address " + addr.String()}
	for _, r := range routes {
		requests, names = append(requests, r.request()), append(names, r.Name())
	}
	return together(requests, names)
}

// request returns the netlink request that adds an IPv4 route, or replaces the existing one.
func (r Route) request() *nl.NetlinkRequest {
	m := nl.NewRtMsg()
	m.Family, m.Dst_len = unix.AF_INET, uint8(r.Prefix.Bits())
	m.Table, m.Protocol, m.Scope, m.Type = unix.RT_TABLE_UNSPEC, uint8(r.Protocol), unix.RT_SCOPE_LINK, unix.RTN_UNICAST
	request := nl.NewNetlinkRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	number := func(kind int, value int) { request.AddData(nl.NewRtAttr(kind, nl.Uint32Attr(uint32(value)))) }
	if r.Gateway.IsValid() {
		m.Scope = unix.RT_SCOPE_UNIVERSE
	}
	request.AddData(m)
	request.AddData(nl.NewRtAttr(unix.RTA_DST, r.Prefix.Addr().AsSlice()))
	number(unix.RTA_OIF, r.Link)
	number(unix.RTA_TABLE, r.Table)
	if r.Metric != 0 {
		number(unix.RTA_PRIORITY, r.Metric)
	}
	if r.Gateway.IsValid() {
		request.AddData(nl.NewRtAttr(unix.RTA_GATEWAY, r.Gateway.AsSlice()))
	}
	if r.Source.IsValid() {
		request.AddData(nl.NewRtAttr(unix.RTA_PREFSRC, r.Source.AsSlice()))
	}
	return request
}

// together sends requests in one message, and joins the kernel's errors, with the name of each request. If one fails,
// the kernel still executes the others.
func together(requests []*nl.NetlinkRequest, names []string) error {
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer unix.Close(socket)
	if err := unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO,
		&unix.Timeval{Sec: answerTime}); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	var all []byte
	waiting := map[uint32]string{}
	for i, r := range requests {
		r.Seq = uint32(i + 1)
		waiting[r.Seq] = names[i]
		all = append(all, r.Serialize()...)
	}
	if err := unix.Sendto(socket, all, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	var errs []error
	buffer := make([]byte, 1<<16)
	for len(waiting) > 0 {
		n, _, err := unix.Recvfrom(socket, buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("netlink: %w", err))...)
		}
		answers, err := syscall.ParseNetlinkMessage(buffer[:n])
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("netlink: %w", err))...)
		}
		for _, a := range answers {
			name, mine := waiting[a.Header.Seq]
			if !mine || a.Header.Type != unix.NLMSG_ERROR || len(a.Data) < 4 {
				continue
			}
			delete(waiting, a.Header.Seq)
			if code := int32(binary.NativeEndian.Uint32(a.Data)); code != 0 {
				errs = append(errs, fmt.Errorf("%s: %w", name, unix.Errno(-code)))
			}
		}
	}
	return errors.Join(errs...)
}
