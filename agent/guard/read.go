package guard

import (
	"errors"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/agent/kernel"
)

// dump returns the attributes of each of the table's objects of a kind.
func dump(kind, answer int) (all []map[uint16][]byte, err error) {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|kind, unix.NLM_F_DUMP)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: byte(table.Family), Version: nl.NFNETLINK_V0})
	request.AddData(nl.NewRtAttr(unix.NFTA_TABLE_NAME, nl.ZeroTerminated(TableName)))
	messages, err := request.Execute(unix.NETLINK_NETFILTER, uint16(unix.NFNL_SUBSYS_NFTABLES<<8|answer))
	if err != nil && !errors.Is(err, nl.ErrDumpInterrupted) { // by a change, which is an event if it is of this table
		return nil, err
	}
	for _, m := range messages {
		attributes := map[uint16][]byte{}
		_ = kernel.EachAttribute(m[min(len(m), nl.SizeofNfgenmsg):], func(kind uint16, value []byte) {
			attributes[kind] = value
		})
		if nl.BytesToString(attributes[unix.NFTA_TABLE_NAME]) == TableName { // the same number in all messages
			all = append(all, attributes)
		}
	}
	return all, nil
}

// readEntries returns the rules of each chain, from one list: one for each, as the library has it, takes three times.
func readEntries() (map[string][]entry, error) {
	rules, err := dump(unix.NFT_MSG_GETRULE, unix.NFT_MSG_NEWRULE)
	if err != nil {
		return nil, err
	}
	chains := map[string][]entry{}
	for _, attributes := range rules {
		var e entry
		e.comment, _ = userdata.GetString(attributes[unix.NFTA_RULE_USERDATA], userdata.TypeComment)
		_ = kernel.EachAttribute(attributes[unix.NFTA_RULE_EXPRESSIONS], e.parse)
		chain := nl.BytesToString(attributes[unix.NFTA_RULE_CHAIN])
		chains[chain] = append(chains[chain], e)
	}
	return chains, nil
}

// parse adds an expression: of those that no rule of ours has any one.
func (e *entry) parse(_ uint16, data []byte) {
	var name string
	var x expr.Any = &expr.Notrack{}
	_ = kernel.EachAttribute(data, func(kind uint16, value []byte) {
		if kind == unix.NFTA_EXPR_NAME {
			name = nl.BytesToString(value)
			return
		}
		switch name {
		case "bitwise":
			x = &expr.Bitwise{}
		case "cmp":
			x = &expr.Cmp{}
		case "immediate":
			to := &expr.Immediate{}
			if x = to; expr.Unmarshal(byte(table.Family), value, to) == nil && to.Register == unix.NFT_REG_VERDICT {
				x = &expr.Verdict{}
			}
		case "lookup":
			x = &expr.Lookup{}
		case "meta":
			x = &expr.Meta{}
		case "objref":
			x = &expr.Objref{}
		case "payload":
			x = &expr.Payload{}
		default:
			return
		}
		if expr.Unmarshal(byte(table.Family), value, x) != nil {
			x = &expr.Notrack{}
		}
	})
	e.exprs = append(e.exprs, x)
}
