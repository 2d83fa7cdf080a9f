// Package netevents follows what the kernel tells of by netlink, and nothing of what it need not tell.
//
// It knows messages, not what they mean: that is for those who follow (agent/wireguard, agent/guard). It imports nothing of ours.
package netevents

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Source is what is followed: groups of a protocol of netlink, see netlink(7).
type Source struct {
	// Name in errors and logs.
	Name     string
	Protocol int
	Groups   []uint
	// Filter of messages, as it is attached to the socket (SO_ATTACH_FILTER, socket(7)); what it drops costs nobody anything.
	Filter []unix.SockFilter
	// Buffer is how many bytes the kernel keeps for us while we are busy; 0 for its default.
	Buffer int
}

// Follow calls received with the messages of the kernel, as they come, until ctx ends, which is the error then. missed is called when
// some were lost. Neither may wait.
func Follow(ctx context.Context, source Source, received func([]syscall.NetlinkMessage), missed func()) error {
	s, err := nl.Subscribe(source.Protocol, source.Groups...)
	if err != nil {
		return fmt.Errorf("watching %s: %w", source.Name, err)
	}
	defer context.AfterFunc(ctx, s.Close)()
	defer s.Close()
	program := unix.SockFprog{Len: uint16(len(source.Filter)), Filter: &source.Filter[0]}
	if err := unix.SetsockoptSockFprog(s.GetFd(), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
		return fmt.Errorf("watching %s: attaching the filter: %w", source.Name, err)
	}
	if source.Buffer > 0 {
		if err := s.SetReceiveBufferSize(source.Buffer, true); err != nil {
			slog.Warn("the kernel's events get a small buffer", "of", source.Name, "error", err)
		}
	}
	for {
		messages, from, err := s.Receive()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			missed()
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("watching %s: %w", source.Name, err)
		case from.Pid == nl.PidKernel:
			received(messages)
		}
	}
}

// TypeAt is where the type of a message is in it: struct nlmsghdr, netlink(7).
const TypeAt = 4

// Load16 loads the 16 bits at an offset of a message, see Loaded.
func Load16(at uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: at}
}

// Load8 loads the byte at an offset of a message.
func Load8(at uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: at}
}

// Equal skips so many statements if what was loaded is k, or else so many others.
func Equal(k uint32, then, otherwise uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: then, Jf: otherwise}
}

// How a filter ends: all of the message is taken, or nothing.
var (
	Take = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 31}
	Drop = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}
)

// Loaded is how a filter, which reads in network order, sees a number of 16 bits that the kernel wrote in its own.
func Loaded(n uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, n)))
}
