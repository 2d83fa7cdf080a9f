package guard

import (
	"context"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/agent/kernel"
)

// Watch calls changed when something of the table was deleted or replaced, such as by "nft flush ruleset", or when
// events were lost, until ctx ends. Changes of this process are included. changed must not block. Without nftables it
// waits for the end of ctx.
func Watch(ctx context.Context, changed func()) error {
	if CheckNFTables() != nil {
		<-ctx.Done()
		return ctx.Err()
	}
	source := kernel.EventSource{
		Name: "nftables", Protocol: unix.NETLINK_NETFILTER, Groups: []uint{unix.NFNLGRP_NFTABLES}, Filter: watchFilter(),
	}
	return kernel.FollowEvents(ctx, source, func(messages []syscall.NetlinkMessage) {
		if slices.ContainsFunc(messages, func(m syscall.NetlinkMessage) bool { return tableOf(m) == tableName }) {
			changed()
		}
	}, changed)
}

func tableOf(m syscall.NetlinkMessage) (table string) {
	eachAttribute(m.Data[min(len(m.Data), nl.SizeofNfgenmsg):], func(kind uint16, value []byte) {
		if kind == unix.NFTA_TABLE_NAME { // the same number in all messages
			table = nl.BytesToString(value)
		}
	})
	return table
}

// watchFilter passes only deletions, which the replacement of a rule includes, and tables that are created or changed:
// kube-proxy and Calico add rules all the time. A filter sees only the first message of a transaction, and deleting
// everything begins with any of these.
func watchFilter() []bpf.Instruction {
	kinds := []uint16{
		unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE, unix.NFT_MSG_DELSET,
		unix.NFT_MSG_DELSETELEM, unix.NFT_MSG_DELOBJ, unix.NFT_MSG_DELFLOWTABLE, unix.NFT_MSG_NEWTABLE,
	}
	filter := []bpf.Instruction{kernel.EventType}
	for i, kind := range kinds {
		filter = append(filter, kernel.IfEventType(unix.NFNL_SUBSYS_NFTABLES<<8|kind, uint8(len(kinds)-i), 0))
	}
	return append(filter, kernel.DropEvent, kernel.TakeEvent)
}
