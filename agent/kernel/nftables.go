package kernel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// ErrNoNFTables means that the kernel has no nftables, or does not permit its use.
var ErrNoNFTables = errors.New("this node's kernel has no nftables (nf_tables): only the unreachable routes keep " +
	"packets to remote pods from leaving in the clear, and none are counted")

// CheckNFTables returns nil if the kernel has nftables, and else ErrNoNFTables. It requests the ruleset's generation,
// which every kernel with nftables answers. The library would wait for an answer forever on a kernel without.
func CheckNFTables() error {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	if _, err := request.Execute(unix.NETLINK_NETFILTER, 0); err != nil {
		return fmt.Errorf("%w: %w", ErrNoNFTables, err)
	}
	return nil
}

// FollowTable calls changed when something of a table of nftables was deleted or replaced, or may have been: at the
// beginning, and when events were lost; until ctx ends. changed must not block. Without nftables it waits for the end
// of ctx. It fails as FollowEvents does.
func FollowTable(ctx context.Context, table string, changed func()) error {
	if CheckNFTables() != nil {
		<-ctx.Done()
		return ctx.Err()
	}
	source := EventSource{
		Name: "nftables", Protocol: unix.NETLINK_NETFILTER, Groups: []uint{unix.NFNLGRP_NFTABLES}, Filter: tableFilter(),
	}
	return FollowEvents(ctx, source, func(messages []syscall.NetlinkMessage) {
		ours := func(m syscall.NetlinkMessage) bool { return tableOf(m) == table }
		if len(messages) == 0 || slices.ContainsFunc(messages, ours) {
			changed()
		}
	}, changed)
}

func tableOf(m syscall.NetlinkMessage) string {
	// The number of the table's name is the same in all messages.
	return nl.BytesToString(attribute(m.Data[min(len(m.Data), nl.SizeofNfgenmsg):], unix.NFTA_TABLE_NAME))
}

// tableFilter passes only deletions, which the replacement of a rule includes, and tables that are created or changed:
// kube-proxy and Calico add rules all the time. A filter sees only the first message of a transaction, and deleting
// everything begins with any of these.
func tableFilter() []bpf.Instruction {
	kinds := []uint16{
		unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE, unix.NFT_MSG_DELSET,
		unix.NFT_MSG_DELSETELEM, unix.NFT_MSG_DELOBJ, unix.NFT_MSG_DELFLOWTABLE, unix.NFT_MSG_NEWTABLE,
	}
	filter := []bpf.Instruction{EventType}
	for i, kind := range kinds {
		filter = append(filter, IfEventType(unix.NFNL_SUBSYS_NFTABLES<<8|kind, uint8(len(kinds)-i), 0))
	}
	return append(filter, DropEvent, TakeEvent)
}
