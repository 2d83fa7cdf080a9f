package guard

import (
	"errors"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// dump returns what the table has of a kind: the attributes of each.
func dump(kind, answer int) (all []map[uint16][]byte, err error) {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|kind, unix.NLM_F_DUMP)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: byte(table.Family), Version: nl.NFNETLINK_V0})
	request.AddData(nl.NewRtAttr(attributeTable, nl.ZeroTerminated(tableName)))
	messages, err := request.Execute(unix.NETLINK_NETFILTER, uint16(unix.NFNL_SUBSYS_NFTABLES<<8|answer))
	if err != nil && !errors.Is(err, nl.ErrDumpInterrupted) { // by a change, which Watch reports if it is of this table
		return nil, err
	}
	for _, m := range messages {
		attributes := map[uint16][]byte{}
		if err := eachAttribute(m[min(len(m), nl.SizeofNfgenmsg):], func(kind uint16, value []byte) error {
			attributes[kind] = value
			return nil
		}); err != nil {
			return nil, err
		}
		if nl.BytesToString(attributes[attributeTable]) == tableName {
			all = append(all, attributes)
		}
	}
	return all, nil
}

// readEntries returns the rules of each chain, from one list: the library reads a list for each chain, which takes
// three times as long with many remotes.
func readEntries() (map[string][]entry, error) {
	rules, err := dump(unix.NFT_MSG_GETRULE, unix.NFT_MSG_NEWRULE)
	if err != nil {
		return nil, err
	}
	chains := map[string][]entry{}
	for _, attributes := range rules {
		var e entry
		e.comment, _ = userdata.GetString(attributes[unix.NFTA_RULE_USERDATA], userdata.TypeComment)
		if err := eachAttribute(attributes[unix.NFTA_RULE_EXPRESSIONS], e.parse); err != nil {
			return nil, err
		}
		chain := nl.BytesToString(attributes[unix.NFTA_RULE_CHAIN])
		chains[chain] = append(chains[chain], e)
	}
	return chains, nil
}

func eachAttribute(data []byte, f func(kind uint16, value []byte) error) error {
	attributes, err := nl.ParseRouteAttr(data)
	for _, a := range attributes {
		if err == nil {
			err = f(a.Attr.Type&^unix.NLA_F_NESTED, a.Value)
		}
	}
	return err
}

// parse adds an expression: nil for one that no rule of ours has.
func (e *entry) parse(_ uint16, data []byte) error {
	var name string
	var x expr.Any
	err := eachAttribute(data, func(kind uint16, value []byte) error {
		if kind == unix.NFTA_EXPR_NAME {
			name = nl.BytesToString(value)
			return nil
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
			return nil
		}
		return expr.Unmarshal(byte(table.Family), value, x)
	})
	if err != nil {
		x = nil
	}
	e.exprs = append(e.exprs, x)
	return nil // a rule of somebody else must not keep the table from being mended
}
