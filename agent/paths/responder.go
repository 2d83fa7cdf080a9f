package paths

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// Limits of a responder. A node whose path is measured gets about one probe a second from 5,000 others, and up to 30 at
// a time from one whose path carries less than its links. Only senders that are known use up a limit, each its own
// before that of all.
const (
	answersPerSecond = 200
	answersAtOnce    = 400

	answersPerSecondToOne = 10
	answersAtOnceToOne    = 60
	// forgetSenderAfter is when an unused limit of a sender is full again, and longer.
	forgetSenderAfter = time.Minute
)

// Responder answers probes. It answers only addresses that its caller knows, with fewer bytes than it received, and at
// a limited rate, so that it cannot amplify an attack.
type Responder struct {
	conn  *net.UDPConn
	known func(netip.Addr) bool
	limit *rate.Limiter
	// senders has a limit for each known sender of the last time, and swept is when the others were removed. Only Run
	// uses them.
	senders map[netip.Addr]*probeSender
	swept   time.Time
}

// probeSender is one that is known: its limit, and when it last sent a probe.
type probeSender struct {
	limit *rate.Limiter
	at    time.Time
}

func (r *Responder) allow(from netip.Addr, now time.Time) bool {
	if !r.known(from) {
		return false
	}
	if now.Sub(r.swept) >= forgetSenderAfter {
		maps.DeleteFunc(r.senders, func(_ netip.Addr, s *probeSender) bool { return now.Sub(s.at) >= forgetSenderAfter })
		r.swept = now
	}
	s := r.senders[from]
	if s == nil {
		s = &probeSender{limit: rate.NewLimiter(answersPerSecondToOne, answersAtOnceToOne)}
		r.senders[from] = s
	}
	s.at = now
	return s.limit.AllowN(now, 1) && r.limit.AllowN(now, 1)
}

// NewResponder opens the responder at an address such as ":7774". It answers while Run runs; known reports whether an
// address may ask. It fails if the address is in use.
func NewResponder(ctx context.Context, address string, known func(netip.Addr) bool) (*Responder, error) {
	// With the destination of each datagram, answers can have it as their source: a node may have several addresses.
	config := net.ListenConfig{Control: onSocket(func(fd int) error {
		four := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
		if six := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1); four != nil && six != nil {
			return errors.Join(four, six)
		}
		return nil
	})}
	conn, err := config.ListenPacket(ctx, "udp", address)
	if err != nil {
		return nil, fmt.Errorf("responder of path probes: %w", err)
	}
	return &Responder{conn: conn.(*net.UDPConn), known: known, limit: rate.NewLimiter(answersPerSecond, answersAtOnce),
		senders: map[netip.Addr]*probeSender{}}, nil
}

func (r *Responder) port() uint16 { return uint16(r.conn.LocalAddr().(*net.UDPAddr).Port) }

// Run answers until ctx ends, and closes the responder. It returns ctx's error, or fails if the socket is closed
// before.
func (r *Responder) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { r.conn.Close() })()
	defer r.conn.Close()
	datagram, control, out := make([]byte, largestData), make([]byte, 256), make([]byte, answerSize)
	for {
		n, controls, _, from, err := r.conn.ReadMsgUDPAddrPort(datagram, control)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("responder of path probes: %w", err)
		case err != nil:
			continue // such as the ICMP error of an answer
		}
		// The cheapest check first.
		size := probeAnswer(out, datagram[:n])
		if size == 0 || !r.allow(from.Addr().Unmap(), time.Now()) {
			continue
		}
		// The other node sends a lost probe again.
		_, _, _ = r.conn.WriteMsgUDPAddrPort(out[:size], probeSource(control[:controls]), from)
	}
}

// probeSource returns a control message that makes the answer's source the datagram's destination; see ip(7) and
// ipv6(7). It leaves out the interface: routes decide how the answer leaves.
func probeSource(control []byte) []byte {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			// struct in_pktinfo: index, the local address, the address in the header.
			return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: [4]byte(m.Data[4:8])})
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO &&
			len(m.Data) >= unix.SizeofInet6Pktinfo:
			info := &unix.Inet6Pktinfo{Addr: [16]byte(m.Data[:16])}
			if netip.AddrFrom16(info.Addr).IsLinkLocalUnicast() {
				info.Ifindex = binary.NativeEndian.Uint32(m.Data[16:20])
			}
			return unix.PktInfo6(info)
		}
	}
	return nil
}
