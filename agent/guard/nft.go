package guard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/agent/kernel"
)

// TableName is the name of the agent's table, of nftables' family inet.
const TableName = "semaphore"

var table = &nftables.Table{Name: TableName, Family: nftables.TableFamilyINet}

// directions are all directions, in the order in which their chains are created.
var directions = []direction{out, in, sending, arriving}

// base are the chains that the kernel calls. A map in each, of subnets or ports, leads a packet of a remote to rules of
// its own: a packet passes no more rules with many remotes than with one.
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
	out:      called("leaving", nftables.ChainHookPostrouting, nftables.ChainPriorityFilter),
	in:       called("entering", nftables.ChainHookPrerouting, nftables.ChainPriorityRaw),
	sending:  called("sending", nftables.ChainHookOutput, nftables.ChainPriorityFilter),
	arriving: called("arriving", nftables.ChainHookInput, nftables.ChainPriorityFilter),
}

func called(name string, at *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
	return &nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeFilter, Hooknum: at, Priority: priority}
}

type ruleset struct {
	// chains are the agent's, by name: each rule in order, as encoded returns it. One that is hooked elsewhere is none.
	chains map[string][]string
	// elements are those of the maps that exist.
	elements map[string]elements
	// comments of the rules, those of a chain in order.
	comments map[direction][]string
	// misplaced means that a chain of this name differs from ours, or accepts all packets whatever its rules say;
	// dormant that the whole table does (nft(8)).
	misplaced, dormant bool
	counters           map[string]uint64 // packets
	exists             bool
}

// transaction bounds one transaction, and the kernel's answers to it, one for each message, in bytes: the rules of a
// few thousand remotes. With the kernel's own bounds, those of sixty remotes are too many.
const transaction = 32 << 20

func open(options ...nftables.ConnOption) (*nftables.Conn, error) {
	conn, err := nftables.New(append(options, nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetReadBuffer(transaction), c.SetWriteBuffer(transaction))
	}))...)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return conn, nil
}

func readRuleset() (ruleset, error) {
	s := ruleset{
		chains: map[string][]string{}, elements: map[string]elements{}, comments: map[direction][]string{},
	}
	if err := kernel.CheckNFTables(); err != nil {
		return s, err
	}
	conn, err := open(nftables.AsLasting())
	if err != nil {
		return s, err
	}
	defer func() { _ = conn.CloseLasting() }()
	tables, err := conn.ListTablesOfFamily(table.Family)
	if err != nil {
		return s, fmt.Errorf("nftables: tables: %w", err)
	}
	at := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == TableName })
	if s.exists = at >= 0; !s.exists {
		return s, nil
	}
	// The kernel returns the flags in network order, and the library does not convert them.
	s.dormant = binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, tables[at].Flags))&dormant != 0
	chains, err := conn.ListChainsOfTableFamily(table.Family)
	if err != nil {
		return s, fmt.Errorf("nftables: chains of table %s: %w", TableName, err)
	}
	rules, err := readEntries()
	if err != nil {
		return s, fmt.Errorf("nftables: rules of table %s: %w", TableName, err)
	}
	for _, c := range chains {
		if c.Table.Name == TableName {
			s.add(c, rules[c.Name])
		}
	}
	if err := s.readMaps(conn); err != nil {
		return s, fmt.Errorf("nftables: maps of table %s: %w", TableName, err)
	}
	s.counters, err = readCounters()
	return s, err
}

// add adds a chain with its rules. One that is not the agent's is ignored.
func (s *ruleset) add(c *nftables.Chain, rules []entry) {
	name, _, led := strings.Cut(c.Name, ledSeparator)
	for d, want := range base {
		if name != want.Name {
			continue
		}
		hooked := c.Hooknum != nil && c.Priority != nil
		if hooked == led ||
			hooked && (*c.Hooknum != *want.Hooknum || *c.Priority != *want.Priority || c.Type != want.Type) {
			s.misplaced = true
			continue
		}
		s.chains[c.Name] = []string{}
		for _, r := range rules {
			s.chains[c.Name] = append(s.chains[c.Name], r.encoded())
			if r.comment != "" {
				s.comments[d] = append(s.comments[d], r.comment)
			}
		}
	}
}

func (s *ruleset) readMaps(conn *nftables.Conn) error {
	sets, err := dump(unix.NFT_MSG_GETSET, unix.NFT_MSG_NEWSET)
	if err != nil {
		return err
	}
	for _, attributes := range sets {
		for _, m := range verdictMaps {
			if m.name() != nl.BytesToString(attributes[unix.NFTA_SET_NAME]) {
				continue
			}
			is, err := conn.GetSetElements(m.set())
			if err != nil {
				return err
			}
			s.elements[m.name()] = elementsOf(is)
		}
	}
	return nil
}

func readCounters() (map[string]uint64, error) {
	if err := kernel.CheckNFTables(); err != nil {
		return nil, err
	}
	conn, err := open()
	if err != nil {
		return nil, err
	}
	objects, err := conn.GetObjects(table)
	if err != nil {
		return nil, fmt.Errorf("nftables: counters of table %s: %w", TableName, err)
	}
	counters := map[string]uint64{}
	for _, o := range objects {
		if c, ok := o.(*nftables.CounterObj); ok {
			counters[c.Name] = c.Packets
		}
	}
	return counters, nil
}

// dormant is NFT_TABLE_F_DORMANT: the chains of such a table are not hooked.
const dormant = 1

func (s *ruleset) matches(w wanted) bool {
	if s.misplaced || s.dormant || len(s.stale(w)) > 0 {
		return false
	}
	for name := range w.counters {
		if _, there := s.counters[name]; !there {
			return false
		}
	}
	for name := range w.chains {
		if s.differs(w, name) {
			return false
		}
	}
	for _, m := range verdictMaps {
		is, there := s.elements[m.name()]
		if remove, add := is.change(w.elements[m.name()]); !there || len(remove)+len(add) > 0 {
			return false
		}
	}
	return true
}

func (s *ruleset) differs(w wanted, chain string) bool {
	is, there := s.chains[chain]
	return !there || !slices.EqualFunc(is, w.chains[chain], func(is string, e entry) bool { return is == e.encoded() })
}

// stale returns the chains to which no map is to lead any more.
func (s *ruleset) stale(w wanted) (chains []*nftables.Chain) {
	for name := range s.chains {
		if _, stays := w.chains[name]; !stays {
			chains = append(chains, chainNamed(name))
		}
	}
	return chains
}

// write makes of the existing table the wanted one. Every packet of a remote that remains meets either the old rules or
// the new ones, and its counters continue. A table in which another program's objects make the change fail is replaced.
func write(w wanted, existing ruleset) error {
	conn, err := open()
	if err != nil {
		return err
	}
	if !existing.misplaced {
		err := existing.change(conn, w)
		if err == nil || errors.Is(err, unix.EPERM) {
			return err
		}
		slog.Warn("the table of the guard refuses a change, and is written again", "table", TableName, "error", err)
	}
	if err := existing.replace(conn, w); err != nil {
		return err
	}
	if existing, err = readRuleset(); err != nil {
		return err
	}
	return existing.change(conn, w)
}

// replace replaces a table by one without maps. A packet on its way would find no element in the maps of a table that
// goes, nor in those of one that comes. So the chains of the old one, too, have all rules before.
func (s *ruleset) replace(conn *nftables.Conn, w wanted) error {
	s.addCounters(conn, w)
	s.flatten(conn, w)
	if err := conn.Flush(); err != nil {
		slog.Warn("the table of the guard cannot be prepared for its end", "table", TableName, "error", err)
	}
	conn.DelTable(table)
	(&ruleset{}).addCounters(conn, w)
	for _, d := range directions {
		conn.AddChain(base[d])
		addRules(conn, base[d].Name, w.flat(d))
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("nftables: replacing table %s: %w", TableName, err)
	}
	return nil
}

// change is write by as little as possible, in two transactions. A packet meets the rules of all chains as they were
// when it came, but the elements of maps as they are: chains have their rules, and new maps their elements, before
// anything leads there. Elements that remain are not written again.
func (s *ruleset) change(conn *nftables.Conn, w wanted) error {
	if err := s.prepare(conn, w); err != nil {
		return err
	}
	if err := s.changeMaps(conn, w); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(w.chains)) {
		c := chainNamed(name)
		if _, there := s.chains[name]; (there || c.Hooknum != nil) && s.differs(w, name) {
			conn.AddChain(c)
			conn.FlushChain(c)
			addRules(conn, name, w.chains[name])
		}
	}
	for _, c := range s.stale(w) {
		conn.FlushChain(c)
		conn.DelChain(c)
	}
	for name := range s.counters {
		if !w.counters[name] {
			conn.DeleteObject(&nftables.CounterObj{Table: table, Name: name})
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("nftables: writing table %s: %w", TableName, err)
	}
	return nil
}

// prepare adds missing objects that have no effect yet: counters, chains to which maps will lead, and maps.
func (s *ruleset) prepare(conn *nftables.Conn, w wanted) error {
	s.addCounters(conn, w)
	for _, name := range slices.Sorted(maps.Keys(w.chains)) {
		if _, there := s.chains[name]; !there && chainNamed(name).Hooknum == nil {
			conn.AddChain(chainNamed(name))
			addRules(conn, name, w.chains[name])
		}
	}
	for _, m := range verdictMaps {
		if _, there := s.elements[m.name()]; there {
			continue
		}
		_, add := elements{}.change(w.elements[m.name()])
		if err := errors.Join(conn.AddSet(m.set(), nil), m.change(conn, nil, add)); err != nil {
			return err
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("nftables: preparing table %s: %w", TableName, err)
	}
	return nil
}

// changeMaps changes the elements of maps that exist. While elements take the place of others, nothing is looked up:
// packets leaked on Linux 6.1, which may find neither for a moment.
func (s *ruleset) changeMaps(conn *nftables.Conn, w wanted) (err error) {
	replaced := false
	for _, m := range verdictMaps {
		remove, add := s.elements[m.name()].change(w.elements[m.name()])
		replaced = replaced || s.elements[m.name()] != nil && len(remove) > 0 && len(add) > 0
	}
	if replaced {
		s.flatten(conn, w)
		err = conn.Flush()
	}
	for _, m := range verdictMaps {
		if is, there := s.elements[m.name()]; there {
			remove, add := is.change(w.elements[m.name()])
			err = errors.Join(err, m.change(conn, remove, add))
		}
	}
	if replaced && err == nil {
		err = conn.Flush()
	}
	if err != nil {
		return fmt.Errorf("nftables: maps of table %s: %w", TableName, err)
	}
	return nil
}

// flatten gives the base chains all rules.
func (s *ruleset) flatten(conn *nftables.Conn, w wanted) {
	for d, c := range base {
		if _, there := s.chains[c.Name]; there {
			conn.FlushChain(c)
			addRules(conn, c.Name, w.flat(d))
			s.chains[c.Name] = nil // another than is wanted
		}
	}
}

// addCounters adds the counters that are missing, and the table.
func (s *ruleset) addCounters(conn *nftables.Conn, w wanted) {
	conn.AddTable(table)
	for _, name := range slices.Sorted(maps.Keys(w.counters)) {
		if _, there := s.counters[name]; !there {
			conn.AddObj(&nftables.CounterObj{Table: table, Name: name})
		}
	}
}

// maxElements bounds the elements of a message: netlink's attributes have at most 64 KiB.
const maxElements = 256

func (m verdictMap) change(conn *nftables.Conn, remove, add []nftables.SetElement) (err error) {
	for some := range slices.Chunk(remove, maxElements) {
		err = errors.Join(err, conn.SetDeleteElements(m.set(), some))
	}
	for some := range slices.Chunk(add, maxElements) {
		err = errors.Join(err, conn.SetAddElements(m.set(), some))
	}
	return err
}

func addRules(conn *nftables.Conn, chain string, rules []entry) {
	for _, e := range rules {
		r := &nftables.Rule{Table: table, Chain: chainNamed(chain), Exprs: e.exprs}
		if e.comment != "" {
			r.UserData = userdata.AppendString(nil, userdata.TypeComment, e.comment)
		}
		conn.AddRule(r)
	}
}

func chainNamed(name string) *nftables.Chain {
	for _, c := range base {
		if c.Name == name {
			return c
		}
	}
	return &nftables.Chain{Name: name, Table: table}
}

// deleteTable deletes the agent's table. It reports whether it existed.
func deleteTable() (bool, error) {
	existing, err := readRuleset()
	if err != nil || !existing.exists {
		return false, err
	}
	conn, err := open()
	if err != nil {
		return false, err
	}
	conn.DelTable(table)
	if err := conn.Flush(); err != nil {
		return false, fmt.Errorf("nftables: deleting table %s: %w", TableName, err)
	}
	return true, nil
}
