package paths

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/agent/plan"
)

const (
	// tries is how often a size is sent before it counts as lost, and patience the wait for each. A later answer still
	// counts.
	tries    = 4
	patience = 500 * time.Millisecond
)

// Measurement is the result for a path: of packets inside a tunnel, those whose encrypted packet arrives.
type Measurement struct {
	plan.MTUResult
	// RoundTrip is the shortest time between a datagram and its answer.
	RoundTrip time.Duration
}

// MeasurePath measures how large packets inside a tunnel to the node at an address can be, between least and most
// bytes. It takes one round trip if the path carries most, some seconds if not, and two seconds if no responder
// answers. It fails if ctx or the path ends before, or a socket cannot be used.
//
// It sends UDP datagrams that must not be fragmented, and the node's Responder answers each with a small one that
// states how much arrived. It does not rely on ICMP, which firewalls often drop (RFC 4821, RFC 8899). The result is a
// hint: an answer proves that a packet of that size arrived, and no answer proves nothing by itself. All sizes are
// those of the packet inside.
func MeasurePath(ctx context.Context, to netip.AddrPort, least, most int) (Measurement, error) {
	if least > most || least+wrapping < smallest || most+wrapping > largestData {
		return Measurement{}, fmt.Errorf("path to %s: there is nothing between %d and %d bytes to measure", to.Addr(),
			least, most)
	}
	p, err := newProber(ctx, to)
	if err != nil {
		return Measurement{}, fmt.Errorf("path to %s: %w", to.Addr(), err)
	}
	defer p.conn.Close()
	defer context.AfterFunc(ctx, func() { p.conn.Close() })()
	if there, err := p.there(); err != nil || !there {
		return Measurement{}, p.explain(ctx, err)
	}
	s := newSearch(least, most)
	for more := true; more; more = s.next() {
		if err := p.round(s); err != nil {
			return Measurement{}, p.explain(ctx, err)
		}
	}
	if s.through < most {
		// The result is valid only if the path still works.
		there, err := p.there()
		if err == nil && !there {
			err = errors.New("the path failed during the measurement")
		}
		if err != nil {
			return Measurement{}, p.explain(ctx, err)
		}
	}
	m := Measurement{RoundTrip: p.roundTrip}
	if m.Answered = true; s.through >= least {
		m.Carries = s.through
	}
	return m, nil
}

type prober struct {
	conn *net.UDPConn
	to   netip.AddrPort
	sent map[uint64]datagram
	data []byte
	// roundTrip is the shortest so far; 0 for none.
	roundTrip time.Duration
}

type datagram struct {
	size int
	at   time.Time
}

func newProber(ctx context.Context, to netip.AddrPort) (*prober, error) {
	// No fragmentation, neither on this host nor on the path, and no use of the kernel's path MTU: ip(7), ipv6(7).
	network, whole := "udp4", func(fd int) error {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
	}
	if to.Addr().Unmap().Is6() {
		network, whole = "udp6", func(fd int) error {
			return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE),
				unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1))
		}
	}
	config := net.ListenConfig{Control: onSocket(whole)}
	conn, err := config.ListenPacket(ctx, network, "")
	if err != nil {
		return nil, err
	}
	return &prober{conn: conn.(*net.UDPConn), to: netip.AddrPortFrom(to.Addr().Unmap(), to.Port()),
		sent: map[uint64]datagram{}, data: make([]byte, largestData)}, nil
}

func onSocket(do func(fd int) error) func(string, string, syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) { failed = do(int(fd)) })
		return errors.Join(err, failed)
	}
}

// explain returns the context's error if that is the cause, and adds the step that failed.
func (p *prober) explain(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	default:
		return fmt.Errorf("path to %s: %w", p.to.Addr(), err)
	}
}

// there asks with a datagram that every path carries.
func (p *prober) there() (bool, error) {
	for range tries {
		id, err := p.send(smallest)
		if err != nil {
			return false, err
		}
		found := false
		if err := p.receive(func(got uint64, _ int) bool { found = found || got == id; return found }); err != nil || found {
			return found, err
		}
	}
	return false, nil
}

// round sends the sizes of a round until all arrived, or were tried often enough.
func (p *prober) round(s *search) error {
	for range tries {
		for _, size := range s.missing() {
			if _, err := p.send(size + wrapping); err != nil {
				return err
			}
		}
		if err := p.receive(func(_ uint64, size int) bool {
			s.arrived(size - wrapping)
			return len(s.missing()) == 0
		}); err != nil || len(s.missing()) == 0 {
			return err
		}
	}
	return nil
}

// send sends a datagram. One that is too large for the link counts as lost on the path.
func (p *prober) send(size int) (uint64, error) {
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return 0, err
	}
	id := binary.BigEndian.Uint64(random[:])
	encodeProbe(p.data[:size], kindProbe, id)
	p.sent[id] = datagram{size, time.Now()}
	_, err := p.conn.WriteToUDPAddrPort(p.data[:size], p.to)
	if errors.Is(err, unix.EMSGSIZE) {
		err = nil
	}
	return id, err
}

// receive reads answers until enough returns true or the wait for an answer ends.
func (p *prober) receive(enough func(id uint64, size int) bool) error {
	if err := p.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	var buffer [answerSize + 1]byte
	for {
		n, from, err := p.conn.ReadFromUDPAddrPort(buffer[:])
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case errors.Is(err, unix.EMSGSIZE):
			continue // ICMP: a datagram was too large
		case err != nil:
			return err
		}
		// The id proves that the probe reached the sender of the answer, and the size must be one that was sent.
		id, size, err := arrived(buffer[:n])
		sent, ok := p.sent[id]
		if err != nil || !ok || size != sent.size || from.Addr().Unmap() != p.to.Addr() {
			continue
		}
		if took := time.Since(sent.at); p.roundTrip == 0 || took < p.roundTrip {
			p.roundTrip = took
		}
		if enough(id, size) {
			return nil
		}
	}
}
