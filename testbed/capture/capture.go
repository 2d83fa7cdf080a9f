//go:build linux

// Package capture records the packets that pass one interface of a network namespace, in both directions, as tcpdump
// would: through a packet socket (packet(7)), without any program.
//
// It owns the socket and what it read. It imports testbed/netns only.
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

	"github.com/kube-semaphore/semaphore/testbed/netns"
	"golang.org/x/sys/unix"
)

const (
	// snapLength is the most of a packet that is kept: more than any packet has, offloads included.
	snapLength = 1 << 17
	// receiveBuffer is how much the kernel keeps until it is read.
	receiveBuffer = 32 << 20
	// drainTime bounds how long Stop reads what the kernel has kept, while more comes.
	drainTime = 2 * time.Second
	// auxHeadroom holds the control message of one packet.
	auxHeadroom = 128
)

// Packet is one packet as it passed the interface.
type Packet struct {
	// Time is when the kernel saw it.
	Time time.Time
	// Data begins with the link layer's header; for Ethernet the destination address. A VLAN tag that the device took off
	// is missing.
	Data []byte
}

// Capture is a recording that runs.
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

// Start begins to record the interface of the namespace, or with no name what comes in on any of them, which on a
// switch is every packet once; packets that pass after it returned are in. A goroutine reads them until Stop.
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

// open makes a packet socket that receives all packets of an interface of the current namespace.
func open(iface string) (_ int, err error) {
	// Without a protocol nothing is received before the socket is bound to its interface.
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
	// The limit net.core.rmem_max holds for SO_RCVBUF, not for the forced kind.
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

// interfaceIndex is 0, which is every interface, for no name; the socket then filters outgoing packets.
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

// read keeps packets as they come, until the socket's deadline.
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

// drain keeps all packets that are there now, or until it is enough: others may come as fast as they are read.
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

// timestamp reads the time from a packet's control messages, and takes the present one where there is none.
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

// Packets returns what was recorded up to now. The recording continues.
func (c *Capture) Packets() []Packet {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.packets[:len(c.packets):len(c.packets)]
}

// Wait waits until a packet was recorded that satisfies want, and gives it. The error is ctx's when none came.
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

// Stop ends the recording and gives all packets, in their order. An error says that some are missing: reading failed,
// or there were more than could be kept. Stopping again gives the same packets.
func (c *Capture) Stop() ([]Packet, error) {
	c.once.Do(c.end)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.packets, fmt.Errorf("capture on %s: %w", c.name, c.err)
	}
	return c.packets, nil
}

// end ends the reader, keeps what it has left, and closes the socket.
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
