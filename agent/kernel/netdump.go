package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// dumpRequest is a request for a list, see rtnetlink(7).
type dumpRequest struct {
	// Type of the request (RTM_GET…) and of the messages that answer it.
	Type, Answer uint16
	// Header is the fixed part of the request, which begins with the family, Attributes the rest.
	Header     nl.NetlinkRequestData
	Attributes []*nl.RtAttr
}

// dump calls f with each message of the answer, without its netlink header. f must not retain it. The kernel applies
// header and attributes from Linux 4.20 on (NETLINK_GET_STRICT_CHK); an older one returns more, so the caller filters
// the messages. For a family that it lacks, as IPv6 with ipv6.disable=1, a kernel returns all others (rtnl_dump_all).
// A change meanwhile causes nl.ErrDumpInterrupted, after messages that may not be all.
func dump(r dumpRequest, f func(message []byte)) error {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := errors.Join(s.SetSendTimeout(&nl.SocketTimeoutTv), s.SetReceiveTimeout(&nl.SocketTimeoutTv)); err != nil {
		return err
	}
	_ = unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1) // an older kernel has none
	request := nl.NewNetlinkRequest(int(r.Type), unix.NLM_F_DUMP)
	request.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}
	request.AddData(r.Header)
	for _, a := range r.Attributes {
		request.AddData(a)
	}
	family := r.Header.Serialize()[0]
	return request.ExecuteIter(unix.NETLINK_ROUTE, r.Answer, func(message []byte) bool {
		if len(message) > 0 && message[0] == family {
			f(message)
		}
		return true
	})
}

// EachAttribute calls f with each attribute in data. A malformed one ends it with an error.
func EachAttribute(data []byte, f func(kind uint16, value []byte)) error {
	for len(data) >= unix.SizeofRtAttr {
		length := int(binary.NativeEndian.Uint16(data))
		if length < unix.SizeofRtAttr || length > len(data) {
			return fmt.Errorf("netlink attribute of %d bytes, but only %d are there", length, len(data))
		}
		f(binary.NativeEndian.Uint16(data[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), data[unix.SizeofRtAttr:length])
		data = data[min((length+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1), len(data)):]
	}
	return nil
}
