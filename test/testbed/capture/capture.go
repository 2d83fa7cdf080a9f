//go:build linux

// Package capture records the packets on an interface of a network namespace, in both directions, with a packet socket
// (packet(7)) and without an external program.
//
// The package owns the socket and the recorded packets.
package capture

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"golang.org/x/sys/unix"
)

const (
	// snapLength is the number of bytes kept of a packet. It exceeds every packet size, including offloads.
	snapLength = 1 << 17
	// receiveBuffer is the size in bytes of the kernel's receive buffer.
	receiveBuffer = 32 << 20
	// drainTime bounds the time for which Stop reads buffered packets while new ones arrive.
	drainTime = 2 * time.Second
	// auxHeadroom is the buffer size in bytes for the control message of a packet.
	auxHeadroom = 128
)

// Packet is one recorded packet.
type Packet struct {
	// Time is the kernel's timestamp.
	Time time.Time
	// Data begins with the link layer header, for Ethernet with the destination address. A VLAN tag that the device has
	// stripped is missing.
	Data []byte
}

// Capture is a running recording.
type Capture struct {
	name   string
	socket *os.File
	raw    syscall.RawConn
	done   chan struct{} // closed when the reader has ended
	once   sync.Once     // ends it

	stopping atomic.Bool

	data, aux []byte // the reader's

	mu      sync.Mutex // guards packets and err
	packets []Packet
	err     error
}

// Start records the interface of the namespace. Without a name it records the incoming packets of all interfaces, which
// on a bridge is every packet once. Packets that arrive after Start has returned are recorded. A goroutine reads them
// until Stop.
func Start(ns *netns.Namespace, iface string) (*Capture, error) {
	name := cmp.Or(iface, "all interfaces") + " of " + ns.Name()
	var fd int
	err := ns.Do(func() (err error) {
		fd, err = open(iface)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("capture on %s: %w", name, err)
	}
	c := &Capture{
		name: name, socket: os.NewFile(uintptr(fd), "capture"), done: make(chan struct{}),
		data: make([]byte, snapLength), aux: make([]byte, auxHeadroom),
	}
	if c.raw, err = c.socket.SyscallConn(); err != nil {
		return nil, errors.Join(fmt.Errorf("capture on %s: %w", name, err), c.socket.Close())
	}
	go c.read(c.raw)
	return c, nil
}

// open returns a packet socket for all packets of an interface of the current namespace.
func open(iface string) (_ int, err error) {
	// With protocol 0 the socket receives nothing until it is bound to its interface.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("open packet socket: %w", err)
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	index, err := interfaceIndex(fd, iface)
	if err != nil {
		return -1, err
	}
	// net.core.rmem_max limits SO_RCVBUF, but not SO_RCVBUFFORCE.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer); err != nil {
		return -1, fmt.Errorf("set receive buffer: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		return -1, fmt.Errorf("ask for timestamps: %w", err)
	}
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL)) // in network byte order
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index}); err != nil {
		return -1, fmt.Errorf("bind to interface: %w", err)
	}
	return fd, nil
}

// interfaceIndex returns the index of an interface. Without a name it returns 0 for all interfaces and makes the socket
// ignore outgoing packets.
func interfaceIndex(fd int, iface string) (int, error) {
	if iface == "" {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
			return 0, fmt.Errorf("leave out outgoing packets: %w", err)
		}
		return 0, nil
	}
	ifreq, err := unix.NewIfreq(iface)
	if err != nil {
		return 0, err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, ifreq); err != nil {
		return 0, fmt.Errorf("find interface: %w", err)
	}
	return int(ifreq.Uint32()), nil
}

// read records packets as they arrive, until the socket's deadline.
func (c *Capture) read(raw syscall.RawConn) {
	defer close(c.done)
	var failure error
	err := raw.Read(func(fd uintptr) bool {
		failure = c.drain(int(fd), c.stopping.Load)
		return failure != nil || c.stopping.Load() // else wait for more
	})
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.fail(err)
	}
	if failure != nil {
		c.fail(failure)
	}
}

// drain records all packets in the socket's buffer, or until enough reports true, because packets may arrive as fast as
// they are read.
func (c *Capture) drain(fd int, enough func() bool) error {
	for !enough() {
		n, auxN, _, _, err := unix.Recvmsg(fd, c.data, c.aux, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENETDOWN):
			continue // an interface that went down may come back; the error is reported once
		case err != nil:
			return fmt.Errorf("read packet: %w", err)
		}
		p := Packet{Time: timestamp(c.aux[:auxN]), Data: append([]byte(nil), c.data[:n]...)}
		c.mu.Lock()
		c.packets = append(c.packets, p)
		c.mu.Unlock()
	}
	return nil
}

func (c *Capture) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = errors.Join(c.err, err)
}

// timestamp returns the time in a packet's control messages, or the current time if they have none.
func timestamp(aux []byte) time.Time {
	messages, err := unix.ParseSocketControlMessage(aux)
	if err == nil {
		for _, m := range messages {
			if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
				seconds := int64(binary.NativeEndian.Uint64(m.Data))
				return time.Unix(seconds, int64(binary.NativeEndian.Uint64(m.Data[8:])))
			}
		}
	}
	return time.Now()
}

// Packets returns the packets recorded so far. The recording continues.
func (c *Capture) Packets() []Packet {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.packets[:len(c.packets):len(c.packets)]
}

// Wait returns the first recorded packet that satisfies want. It returns the error of ctx if none arrives.
func (c *Capture) Wait(ctx context.Context, want func(Packet) bool) (Packet, error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	seen := 0
	for {
		packets := c.Packets()
		for _, p := range packets[seen:] {
			if want(p) {
				return p, nil
			}
		}
		seen = len(packets)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return Packet{}, fmt.Errorf("capture on %s: no such packet among %d: %w", c.name, seen, ctx.Err())
		}
	}
}

// Stop ends the recording and returns all packets in order. An error means that packets are missing: reading failed, or
// the kernel dropped some. Further calls return the same packets.
func (c *Capture) Stop() ([]Packet, error) {
	c.once.Do(c.end)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.packets, fmt.Errorf("capture on %s: %w", c.name, c.err)
	}
	return c.packets, nil
}

// end stops the reader, records the buffered packets and closes the socket.
func (c *Capture) end() {
	deadline := time.Now().Add(drainTime)
	c.stopping.Store(true)
	if err := c.socket.SetReadDeadline(time.Now()); err != nil {
		c.fail(err)
	}
	<-c.done
	err := c.raw.Control(func(fd uintptr) {
		if err := c.drain(int(fd), func() bool { return time.Now().After(deadline) }); err != nil {
			c.fail(err)
		}
		stats, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
		switch {
		case err != nil:
			c.fail(fmt.Errorf("read packet statistics: %w", err))
		case stats.Drops > 0:
			c.fail(fmt.Errorf("the kernel dropped %d packets", stats.Drops))
		}
	})
	if err := errors.Join(err, c.socket.Close()); err != nil {
		c.fail(err)
	}
}
