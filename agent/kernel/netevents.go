package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// EventSource are groups of a netlink protocol to subscribe to, see netlink(7).
type EventSource struct {
	// Name appears in errors and logs.
	Name     string
	Protocol int
	Groups   []uint
	// Filter is attached to the socket (SO_ATTACH_FILTER, socket(7)), so that the kernel drops messages without waking
	// the agent.
	Filter []bpf.Instruction
	// Buffer is the size of the socket's receive buffer in bytes; 0 for the kernel's default.
	Buffer int
}

// FollowEvents calls received with the kernel's messages until ctx ends, and returns its error, or that of the socket.
// The first call has none: later changes are messages, and earlier ones are not. It calls missed when messages were
// lost, and again once all that was kept is read: until then the kernel drops more, and reports no further loss
// (NETLINK_S_CONGESTED in Linux' net/netlink/af_netlink.c). Neither may block.
func FollowEvents(
	ctx context.Context, source EventSource, received func([]syscall.NetlinkMessage), missed func(),
) error {
	s, err := nl.Subscribe(source.Protocol, source.Groups...)
	if err != nil {
		return fmt.Errorf("watching %s: %w", source.Name, err)
	}
	defer context.AfterFunc(ctx, s.Close)()
	defer s.Close()
	if err := attachFilter(s.GetFd(), source.Filter); err != nil {
		return fmt.Errorf("watching %s: attaching the filter: %w", source.Name, err)
	}
	if source.Buffer > 0 {
		if err := s.SetReceiveBufferSize(source.Buffer, true); err != nil {
			slog.Warn("cannot enlarge the kernel's event buffer; events may be lost", "source", source.Name, "error", err)
		}
	}
	received(nil)
	for behind := false; ; {
		messages, from, err := s.Receive()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			behind = true
			missed()
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("watching %s: %w", source.Name, err)
		case from.Pid == nl.PidKernel:
			received(messages)
		}
		if behind {
			_, _, err := unix.Recvfrom(s.GetFd(), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
			behind = !errors.Is(err, unix.EAGAIN)
			if !behind || errors.Is(err, unix.ENOBUFS) { // reported here, and not to Receive
				missed()
			}
		}
	}
}

// EventType loads the type of a message: the first statement of a filter that decides by it. See struct nlmsghdr,
// netlink(7).
var EventType = bpf.LoadAbsolute{Off: 4, Size: 2}

// IfEventType skips then statements if the loaded 16-bit number is k, and otherwise statements if not. The kernel wrote
// the number in its own byte order; a filter loads in network order.
func IfEventType(k uint16, then, otherwise uint8) bpf.JumpIf {
	loaded := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, k))
	return bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(loaded), SkipTrue: then, SkipFalse: otherwise}
}

// The last statements of a filter: accept the message, or drop it.
var (
	TakeEvent = bpf.RetConstant{Val: 1 << 31}
	DropEvent = bpf.RetConstant{Val: 0}
)

func attachFilter(socket int, filter []bpf.Instruction) error {
	raw, err := bpf.Assemble(filter)
	if err != nil {
		return err
	}
	statements := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		statements[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	program := unix.SockFprog{Len: uint16(len(statements)), Filter: &statements[0]}
	return unix.SetsockoptSockFprog(socket, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program)
}
