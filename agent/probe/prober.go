package probe

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
)

const (
	// tries is how often a size is sent before it is taken to be lost, patience what is waited each time. An answer
	// that comes later still counts.
	tries    = 4
	patience = 500 * time.Millisecond
)

// Result of a measurement.
type Result struct {
	// Answered reports whether a responder is there.
	Answered bool
	// Carries is the largest packet that a tunnel can carry whose packets just come through, of those from least to
	// most; 0 for less than least.
	Carries int
}

// Measure finds out how large the packets of a tunnel to the node at an address can be, between least and most bytes
// inside the tunnel. It takes one round trip where the path is as wide as most, some seconds where it is not, and two
// where nobody answers. An error says that nothing could be found out.
func Measure(ctx context.Context, to netip.AddrPort, least, most int) (Result, error) {
	if least > most || least+wrapping < smallest || most+wrapping > largestData {
		return Result{}, fmt.Errorf("path to %s: there is nothing between %d and %d bytes to measure", to.Addr(), least, most)
	}
	p, err := newProber(ctx, to)
	if err != nil {
		return Result{}, fmt.Errorf("path to %s: %w", to.Addr(), err)
	}
	defer p.conn.Close()
	defer context.AfterFunc(ctx, func() { p.conn.Close() })()
	if there, err := p.there(); err != nil || !there {
		return Result{}, p.explain(ctx, err)
	}
	s := newSearch(least, most)
	for more := true; more; more = s.next() {
		if err := p.round(s); err != nil {
			return Result{}, p.explain(ctx, err)
		}
	}
	if s.through < most {
		// It is the size only if the path is still there.
		there, err := p.there()
		if err == nil && !there {
			err = errors.New("it was lost while it was measured")
		}
		if err != nil {
			return Result{}, p.explain(ctx, err)
		}
	}
	if s.through < least {
		return Result{Answered: true}, nil
	}
	return Result{Answered: true, Carries: s.through}, nil
}

// prober is one measurement.
type prober struct {
	conn *net.UDPConn
	to   netip.AddrPort
	// sent are the sizes of the datagrams by their ids.
	sent map[uint64]int
	data []byte
}

func newProber(ctx context.Context, to netip.AddrPort) (*prober, error) {
	// Fragmented nowhere, neither here nor on the way, and whatever is believed of the path so far: ip(7), ipv6(7).
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
	return &prober{conn: conn.(*net.UDPConn), to: netip.AddrPortFrom(to.Addr().Unmap(), to.Port()), sent: map[uint64]int{},
		data: make([]byte, largestData)}, nil
}

func onSocket(do func(fd int) error) func(string, string, syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) { failed = do(int(fd)) })
		return errors.Join(err, failed)
	}
}

// explain is a context's error where that is the reason, and says what failed.
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

// there asks with a datagram that any path carries.
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

// round sends the sizes of a round until all came through, or have been tried often enough.
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

// send sends a datagram. One that is too large for the link is as good as lost on the way.
func (p *prober) send(size int) (uint64, error) {
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return 0, err
	}
	id := binary.BigEndian.Uint64(random[:])
	encode(p.data[:size], kindProbe, id)
	p.sent[id] = size
	_, err := p.conn.WriteToUDPAddrPort(p.data[:size], p.to)
	if errors.Is(err, unix.EMSGSIZE) {
		err = nil
	}
	return id, err
}

// receive takes answers, of which enough says when to stop, for as long as one waits for an answer.
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
			continue // a router's word for one that was too large
		case err != nil:
			return err
		}
		// The id is proof that this is from somebody whom the probe reached, and the size must be what was sent.
		id, size, err := arrived(buffer[:n])
		if sent, ok := p.sent[id]; err != nil || !ok || size != sent || from.Addr().Unmap() != p.to.Addr() {
			continue
		}
		if enough(id, size) {
			return nil
		}
	}
}
