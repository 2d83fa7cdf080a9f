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
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// TableName is the name of our table, of nftables' family inet.
const TableName = "semaphore"

var table = &nftables.Table{Name: TableName, Family: nftables.TableFamilyINet}

// directions are all of them, in the order in which their chains are made.
var directions = []direction{out, in, sending, arriving}

// base are the chains.
//
// What leaves the node passes postrouting, whether it was forwarded or is the node's own, with the address and the
// interface that it leaves by: the destination of a Service was translated before, at prerouting or output. Only the
// source is translated later (srcnat, 100), which is left to those packets that may go. A drop is final, whatever the
// chains of Calico and kube-proxy accept. What a device has encrypted has the address of a node and matches nothing.
//
// What a device has encrypted is the node's own and passes output; what it is to decrypt passes input, both once it is
// whole: fragments have no port.
//
// What enters passes prerouting; raw is before connection tracking, which then holds nothing of what is dropped.
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

// standing is our table as it stands.
type standing struct {
	// comments of the rules, in their order, and what each of them does, as the kernel is told it; a chain that is not
	// there, or is hooked elsewhere, has none.
	comments map[direction][]string
	does     map[direction][][]byte
	// misplaced says that a chain of our name is not the one that we make, or lets all pass whatever its rules say, and
	// asleep that the whole table does (dormant, nft(8)).
	misplaced, asleep bool
	counters          map[string]uint64 // packets
	there             bool
}

// ErrNoNFTables says that the kernel has no nftables, or does not let us use them.
var ErrNoNFTables = errors.New("this node's kernel offers no nftables (nf_tables): nothing but the unreachable routes keeps packets " +
	"to remote pods from leaving in the clear, and none are counted")

// offered asks for the ruleset's generation, which every kernel with nftables answers. The library would wait
// forever for the answers of one that has none.
func offered() error {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	if _, err := request.Execute(unix.NETLINK_NETFILTER, 0); err != nil {
		return fmt.Errorf("%w: %w", ErrNoNFTables, err)
	}
	return nil
}

// read reads the table.
func read() (standing, error) {
	s := standing{comments: map[direction][]string{}, does: map[direction][][]byte{}, counters: map[string]uint64{}}
	if err := offered(); err != nil {
		return s, err
	}
	conn, err := nftables.New()
	if err != nil {
		return s, fmt.Errorf("nftables: %w", err)
	}
	tables, err := conn.ListTablesOfFamily(table.Family)
	if err != nil {
		return s, fmt.Errorf("nftables: tables: %w", err)
	}
	at := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == TableName })
	if s.there = at >= 0; !s.there {
		return s, nil
	}
	// The kernel gives the flags in network order, and the library takes them as they come.
	s.asleep = binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, tables[at].Flags))&dormant != 0
	chains, err := conn.ListChainsOfTableFamily(table.Family)
	if err != nil {
		return s, fmt.Errorf("nftables: chains of table %s: %w", TableName, err)
	}
	for _, c := range chains {
		for d, want := range base {
			if c.Table.Name != TableName || c.Name != want.Name {
				continue
			}
			if c.Hooknum == nil || c.Priority == nil || *c.Hooknum != *want.Hooknum || *c.Priority != *want.Priority || c.Type != want.Type {
				s.misplaced = true
				continue
			}
			rules, err := conn.GetRules(table, want)
			if err != nil {
				return s, fmt.Errorf("nftables: rules of table %s: %w", TableName, err)
			}
			for _, r := range rules {
				comment, _ := userdata.GetString(r.UserData, userdata.TypeComment)
				s.comments[d] = append(s.comments[d], comment)
				s.does[d] = append(s.does[d], marshal(r.Exprs))
			}
		}
	}
	objects, err := conn.GetObjects(table)
	if err != nil {
		return s, fmt.Errorf("nftables: counters of table %s: %w", TableName, err)
	}
	for _, o := range objects {
		if c, ok := o.(*nftables.CounterObj); ok {
			s.counters[c.Name] = c.Packets
		}
	}
	return s, nil
}

// dormant is NFT_TABLE_F_DORMANT: the chains of such a table are hooked nowhere.
const dormant = 1

// marshal is what expressions say, in a form that can be compared; nil for what cannot be written.
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

// as says whether the table is the one of remotes.
func (s *standing) as(remotes Remotes, inbound bool) bool {
	if s.misplaced || s.asleep {
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
			if !bytes.Equal(s.does[d][i], marshal(r.expressions(d))) {
				return false
			}
		}
	}
	return true
}

// commentsOf are those that a chain for rules has.
func commentsOf(rules []rule) []string {
	comments := make([]string, len(rules))
	for i, r := range rules {
		comments[i] = r.comment()
	}
	return comments
}

// write makes the table that of remotes, given as it stands. It is one transaction: every packet meets either
// the old rules or the new ones. Counters of remotes that stay go on.
func write(remotes Remotes, inbound bool, stands standing) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	had := stands.counters
	if stands.misplaced {
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
		return fmt.Errorf("nftables: writing table %s: %w", TableName, err)
	}
	return nil
}

// deleteTable takes our table out. It returns whether there was one.
func deleteTable() (bool, error) {
	stands, err := read()
	if err != nil || !stands.there {
		return false, err
	}
	conn, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("nftables: %w", err)
	}
	conn.DelTable(table)
	if err := conn.Flush(); err != nil {
		return false, fmt.Errorf("nftables: deleting table %s: %w", TableName, err)
	}
	return true, nil
}
