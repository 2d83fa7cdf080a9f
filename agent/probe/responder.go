package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// What a responder takes, from all together: a node whose path is measured gets about one probe a second from 5,000
// others, and up to 30 at a time from one whose path carries less than its links.
const (
	answersPerSecond = 200
	answersAtOnce    = 400
)

// Responder answers probes.
type Responder struct {
	conn  *net.UDPConn
	known func(netip.Addr) bool
	limit *rate.Limiter
}

// Listen opens the responder at an address such as ":7774". It answers nobody before Run; known says who may ask.
func Listen(ctx context.Context, address string, known func(netip.Addr) bool) (*Responder, error) {
	// Said where the datagrams came to, answers come from there: a node may have several addresses.
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
	return &Responder{conn: conn.(*net.UDPConn), known: known, limit: rate.NewLimiter(answersPerSecond, answersAtOnce)},
		nil
}

// Port is where it listens.
func (r *Responder) Port() uint16 { return uint16(r.conn.LocalAddr().(*net.UDPAddr).Port) }

// Run answers until ctx ends, and closes the responder.
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
			continue // such as what became of an answer; there is always a next one
		}
		// The cheapest question first.
		size := answer(out, datagram[:n])
		if size == 0 || !r.limit.Allow() || !r.known(from.Addr().Unmap()) {
			continue
		}
		// One that is lost is asked for again.
		_, _, _ = r.conn.WriteMsgUDPAddrPort(out[:size], source(control[:controls]), from)
	}
}

// source makes of the control messages of a datagram one that has the answer come from where that went to; see ip(7)
// and ipv6(7). The way of the answer is for the routes to choose: the interface is left out.
func source(control []byte) []byte {
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
