package guard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Watch calls changed whenever the kernel tells that something was deleted of our table, such as by "nft flush
// ruleset", or that events were lost, until ctx ends. Our own doing is told, too. changed may not wait. Where the
// kernel has no nftables it waits for the end of ctx.
func Watch(ctx context.Context, changed func()) error {
	if offered() != nil {
		<-ctx.Done()
		return ctx.Err()
	}
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return fmt.Errorf("watching nftables: %w", err)
	}
	defer context.AfterFunc(ctx, s.Close)()
	defer s.Close()
	if err := onlyDeletions(s.GetFd()); err != nil {
		return fmt.Errorf("watching nftables: %w", err)
	}
	for {
		messages, from, err := s.Receive()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			changed()
			continue
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("watching nftables: %w", err)
		case from.Pid != nl.PidKernel:
			continue
		}
		for _, m := range messages {
			if tableOf(m) == TableName {
				changed()
				break
			}
		}
	}
}

// tableOf is the name of the table that a message is about.
func tableOf(m syscall.NetlinkMessage) string {
	if len(m.Data) < nl.SizeofNfgenmsg {
		return ""
	}
	attributes, err := nl.ParseRouteAttr(m.Data[nl.SizeofNfgenmsg:])
	if err != nil {
		return ""
	}
	for _, a := range attributes {
		if a.Attr.Type == unix.NFTA_TABLE_NAME { // the same number in messages of chains and rules
			return nl.BytesToString(a.Value)
		}
	}
	return ""
}

// onlyDeletions has the kernel tell of nothing but deletions: what kube-proxy and Calico add all the time does not
// concern us. A filter sees the first of the messages of a transaction alone, and deleting all there is begins with
// any of these. See SO_ATTACH_FILTER in socket(7), and struct nlmsghdr in netlink(7).
func onlyDeletions(fd int) error {
	const typeAt = 4
	statement := func(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }
	deletions := []uint16{
		unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE, unix.NFT_MSG_DELSET,
		unix.NFT_MSG_DELSETELEM, unix.NFT_MSG_DELOBJ, unix.NFT_MSG_DELFLOWTABLE,
	}
	filter := []unix.SockFilter{statement(unix.BPF_LD|unix.BPF_H|unix.BPF_ABS, typeAt)}
	for i, d := range deletions {
		// A filter reads in network order what the kernel wrote in its own.
		kind := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.NFNL_SUBSYS_NFTABLES<<8|d))
		filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(kind), Jt: uint8(len(deletions) - i)})
	}
	filter = append(filter,
		statement(unix.BPF_RET|unix.BPF_K, 0),     // none of it
		statement(unix.BPF_RET|unix.BPF_K, 1<<31), // the whole message
	)
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}
