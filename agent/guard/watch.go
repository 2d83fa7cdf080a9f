package guard

import (
	"context"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/agent/netevents"
)

// Watch calls changed whenever the kernel tells that something was deleted or replaced of our table, such as by "nft
// flush ruleset", or that events were lost, until ctx ends. Our own doing is told, too. changed may not wait. Where the
// kernel has no nftables it waits for the end of ctx.
func Watch(ctx context.Context, changed func()) error {
	if offered() != nil {
		<-ctx.Done()
		return ctx.Err()
	}
	source := netevents.Source{
		Name: "nftables", Protocol: unix.NETLINK_NETFILTER, Groups: []uint{unix.NFNLGRP_NFTABLES}, Filter: changesOfOthers(),
	}
	return netevents.Follow(ctx, source, func(messages []syscall.NetlinkMessage) {
		if slices.ContainsFunc(messages, func(m syscall.NetlinkMessage) bool { return tableOf(m) == TableName }) {
			changed()
		}
	}, changed)
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

// changesOfOthers has the kernel tell of nothing but deletions, which the replacement of a rule is as well, and of
// tables that are made or changed: what kube-proxy and Calico add all the time does not concern us. A filter sees the
// first of the messages of a transaction alone, and deleting all there is begins with any of these.
func changesOfOthers() []bpf.Instruction {
	kinds := []uint16{
		unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE, unix.NFT_MSG_DELSET,
		unix.NFT_MSG_DELSETELEM, unix.NFT_MSG_DELOBJ, unix.NFT_MSG_DELFLOWTABLE, unix.NFT_MSG_NEWTABLE,
	}
	filter := []bpf.Instruction{netevents.Type}
	for i, kind := range kinds {
		filter = append(filter, netevents.Is(unix.NFNL_SUBSYS_NFTABLES<<8|kind, uint8(len(kinds)-i), 0))
	}
	return append(filter, netevents.Drop, netevents.Take)
}
