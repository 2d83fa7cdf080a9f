package guard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// tableName is the name of the agent's table, of nftables' family inet.
const tableName = "semaphore"

var table = &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}

// directions are all directions, in the order in which their chains are created.
var directions = []direction{out, in, sending, arriving}

// base are the chains.
//
// A packet that leaves the node passes postrouting, whether it was forwarded or is the node's own, with the address and
// the interface that it leaves by: the destination of a Service was translated before, at prerouting or output. Only
// the source is translated later (srcnat, 100), which is left to those packets that may go. A drop is final, whatever
// the chains of Calico and kube-proxy accept. A packet that a device has encrypted has the address of a node and
// matches nothing.
//
// A packet that a device has encrypted is the node's own and passes output; one to decrypt passes input, both once they
// are whole: fragments have no port.
//
// A packet that enters passes prerouting; raw is before connection tracking, which then holds nothing of dropped
// packets.
var base = map[direction]*nftables.Chain{
	out: {
		Name: "leaving", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityFilter,
	},
	in: {
		Name: "entering", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw,
	},
	sending: {
		Name: "sending", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter,
	},
	arriving: {
		Name: "arriving", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter,
	},
}

type ruleset struct {
	// comments of the rules in order, and their expressions as the kernel encodes them; none for a chain that is
	// missing or hooked elsewhere.
	comments    map[direction][]string
	expressions map[direction][][]byte
	// misplaced means that a chain of this name differs from ours, or accepts all packets whatever its rules say;
	// dormant that the whole table does (nft(8)).
	misplaced, dormant bool
	counters           map[string]uint64 // packets
	exists             bool
}

// ErrNoNFTables means that the kernel has no nftables, or does not permit its use.
var ErrNoNFTables = errors.New(
	"this node's kernel has no nftables (nf_tables): only the unreachable routes keep packets " +
		"to remote pods from leaving in the clear, and none are counted",
)

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

// transaction bounds one transaction, and the kernel's answers to it, one for each message, in bytes: the rules of a
// few thousand remotes. With the kernel's own bounds, those of sixty remotes are too many.
const transaction = 32 << 20

func open() (*nftables.Conn, error) {
	return nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetReadBuffer(transaction), c.SetWriteBuffer(transaction))
	}))
}

func readRuleset() (ruleset, error) {
	s := ruleset{comments: map[direction][]string{}, expressions: map[direction][][]byte{}, counters: map[string]uint64{}}
	if err := CheckNFTables(); err != nil {
		return s, err
	}
	conn, err := open()
	if err != nil {
		return s, fmt.Errorf("nftables: %w", err)
	}
	tables, err := conn.ListTablesOfFamily(table.Family)
	if err != nil {
		return s, fmt.Errorf("nftables: tables: %w", err)
	}
	at := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == tableName })
	if s.exists = at >= 0; !s.exists {
		return s, nil
	}
	// The kernel returns the flags in network order, and the library does not convert them.
	s.dormant = binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, tables[at].Flags))&dormant != 0
	chains, err := conn.ListChainsOfTableFamily(table.Family)
	if err != nil {
		return s, fmt.Errorf("nftables: chains of table %s: %w", tableName, err)
	}
	for _, c := range chains {
		for d, want := range base {
			if c.Table.Name != tableName || c.Name != want.Name {
				continue
			}
			if c.Hooknum == nil || c.Priority == nil || *c.Hooknum != *want.Hooknum || *c.Priority != *want.Priority ||
				c.Type != want.Type {
				s.misplaced = true
				continue
			}
			rules, err := conn.GetRules(table, want)
			if err != nil {
				return s, fmt.Errorf("nftables: rules of table %s: %w", tableName, err)
			}
			for _, r := range rules {
				comment, _ := userdata.GetString(r.UserData, userdata.TypeComment)
				s.comments[d] = append(s.comments[d], comment)
				s.expressions[d] = append(s.expressions[d], marshal(r.Exprs))
			}
		}
	}
	objects, err := conn.GetObjects(table)
	if err != nil {
		return s, fmt.Errorf("nftables: counters of table %s: %w", tableName, err)
	}
	for _, o := range objects {
		if c, ok := o.(*nftables.CounterObj); ok {
			s.counters[c.Name] = c.Packets
		}
	}
	return s, nil
}

// dormant is NFT_TABLE_F_DORMANT: the chains of such a table are not hooked.
const dormant = 1

// marshal encodes expressions for comparison; nil if they cannot be encoded.
func marshal(exprs []expr.Any) []byte {
	var all []byte
	for _, e := range exprs {
		one, err := expr.Marshal(byte(table.Family), e)
		if err != nil {
			return nil
		}
		all = append(all, one...)
	}
	return all
}

func (s *ruleset) matches(remotes remotes, inbound bool) bool {
	if s.misplaced || s.dormant {
		return false
	}
	for name := range remotes.counters() {
		if _, there := s.counters[name]; !there {
			return false
		}
	}
	for _, d := range directions {
		wanted := remotes.of(d, inbound)
		if !slices.Equal(s.comments[d], commentsOf(wanted)) {
			return false
		}
		for i, r := range wanted {
			if !bytes.Equal(s.expressions[d][i], marshal(r.expressions(d))) {
				return false
			}
		}
	}
	return true
}

func commentsOf(rules []rule) []string {
	comments := make([]string, len(rules))
	for i, r := range rules {
		comments[i] = r.comment()
	}
	return comments
}

// write replaces the existing table by that of remotes. It is one transaction: every packet meets either the old rules
// or the new ones. Counters of remotes that remain continue.
func write(remotes remotes, inbound bool, existing ruleset) error {
	conn, err := open()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	had := existing.counters
	if existing.misplaced {
		conn.DelTable(table)
		had = nil
	}
	conn.AddTable(table)
	wanted := remotes.counters()
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if _, there := had[name]; !there {
			conn.AddObj(&nftables.CounterObj{Table: table, Name: name})
		}
	}
	for _, d := range directions {
		conn.AddChain(base[d])
		conn.FlushChain(base[d])
		for _, r := range remotes.of(d, inbound) {
			conn.AddRule(&nftables.Rule{
				Table: table, Chain: base[d], Exprs: r.expressions(d),
				UserData: userdata.AppendString(nil, userdata.TypeComment, r.comment()),
			})
		}
	}
	for name := range had {
		if !wanted[name] {
			conn.DeleteObject(&nftables.CounterObj{Table: table, Name: name})
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("nftables: writing table %s: %w", tableName, err)
	}
	return nil
}

// deleteTable deletes the agent's table. It reports whether it existed.
func deleteTable() (bool, error) {
	existing, err := readRuleset()
	if err != nil || !existing.exists {
		return false, err
	}
	conn, err := open()
	if err != nil {
		return false, fmt.Errorf("nftables: %w", err)
	}
	conn.DelTable(table)
	if err := conn.Flush(); err != nil {
		return false, fmt.Errorf("nftables: deleting table %s: %w", tableName, err)
	}
	return true, nil
}
