package traffic

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// tableName is the name of the tables, one of nftables' family ip and one of ip6.
const tableName = "semaphore-services"

// forgetAfter is how long the kernel keeps the counters of an idle ClusterIP.
const forgetAfter = time.Hour

// Constants of the kernel's headers that the library lacks (linux/netfilter/nf_conntrack_common.h).
const (
	directionOriginal, directionReply = 0, 1 // IP_CT_DIR_ORIGINAL, IP_CT_DIR_REPLY

	statusConfirmed, statusDNAT = 1 << 3, 1 << 5 // IPS_CONFIRMED, IPS_DST_NAT
)

type family struct {
	*nftables.Table
	key nftables.SetDatatype
}

var families = []family{
	{&nftables.Table{Name: tableName, Family: nftables.TableFamilyIPv4}, nftables.TypeIPAddr},
	{&nftables.Table{Name: tableName, Family: nftables.TableFamilyIPv6}, nftables.TypeIP6Addr},
}

const (
	ofSent     = "sent"
	ofReceived = "received"
	ofNew      = "new"
)

func (f family) set(what string) *nftables.Set {
	return &nftables.Set{Table: f.Table, Name: what, KeyType: f.key, Dynamic: true,
		HasTimeout: true, Timeout: forgetAfter, Size: maxAddresses}
}

// read returns the counts in the sets. It makes a table that is not there.
func read() (sample, error) {
	if err := kernel.CheckNFTables(); err != nil {
		return nil, err
	}
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	out := sample{}
	for _, f := range families {
		there, err := f.exists(conn)
		if err == nil && !there {
			err = f.write(conn)
		} else if err == nil {
			err = f.read(conn, out)
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (f family) read(conn *nftables.Conn, into sample) error {
	for _, what := range []string{ofSent, ofReceived, ofNew} {
		elements, err := conn.GetSetElements(f.set(what))
		if err != nil {
			return fmt.Errorf("nftables: set %s of table %s: %w", what, tableName, err)
		}
		for _, e := range elements {
			into.add(what, e)
		}
	}
	return nil
}

func (s sample) add(what string, e nftables.SetElement) {
	address, ok := netip.AddrFromSlice(e.Key)
	if !ok || e.Counter == nil {
		return
	}
	n := s[address]
	switch what {
	case ofSent:
		n.sent = e.Counter.Bytes
	case ofReceived:
		n.received = e.Counter.Bytes
	case ofNew:
		n.connections = e.Counter.Packets
	}
	s[address] = n
}

func (f family) exists(conn *nftables.Conn) (bool, error) {
	tables, err := conn.ListTablesOfFamily(f.Family)
	if err != nil {
		return false, fmt.Errorf("nftables: tables: %w", err)
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == tableName }), nil
}

// write makes the table, in one transaction. Packets that leave pass postrouting, after kube-proxy has chosen an
// endpoint; answers pass prerouting, once its connection is known. The first packet of a connection is the one that is
// not confirmed yet: that happens at the end of postrouting.
func (f family) write(conn *nftables.Conn) error {
	sent, received := &nftables.Chain{Name: ofSent, Table: f.Table}, &nftables.Chain{Name: ofReceived, Table: f.Table}
	leaving := &nftables.Chain{Name: "leaving", Table: f.Table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityFilter}
	entering := &nftables.Chain{Name: "entering", Table: f.Table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityFilter}
	conn.AddTable(f.Table)
	for _, c := range []*nftables.Chain{sent, received, leaving, entering} {
		conn.AddChain(c)
	}
	for _, r := range []struct {
		chain     *nftables.Chain
		what      string
		direction byte
		condition []expr.Any
	}{
		{sent, ofSent, directionOriginal, nil},
		{sent, ofNew, directionOriginal, connStatus(statusConfirmed, expr.CmpOpEq)},
		{received, ofReceived, directionReply, nil},
	} {
		set := f.set(r.what)
		if err := conn.AddSet(set, nil); err != nil {
			return fmt.Errorf("nftables: set %s of table %s: %w", set.Name, tableName, err)
		}
		conn.AddRule(&nftables.Rule{Table: f.Table, Chain: r.chain, Exprs: ruleOf(r.direction, r.condition, set)})
	}
	for _, prefix := range naming.DevicePrefixes {
		conn.AddRule(&nftables.Rule{Table: f.Table, Chain: leaving, Exprs: jump(expr.MetaKeyOIFNAME, prefix, sent)})
		conn.AddRule(&nftables.Rule{Table: f.Table, Chain: entering, Exprs: jump(expr.MetaKeyIIFNAME, prefix, received)})
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("nftables: writing table %s: %w", tableName, err)
	}
	return nil
}

// jump goes to a chain with packets of interfaces whose names begin with a prefix.
func jump(name expr.MetaKey, prefix string, to *nftables.Chain) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: name, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(prefix)},
		&expr.Verdict{Kind: expr.VerdictJump, Chain: to.Name},
	}
}

// ruleOf counts packets of one direction of connections to a Service, by the address that they were opened to.
func ruleOf(direction byte, condition []expr.Any, set *nftables.Set) []expr.Any {
	exprs := []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{direction}},
	}
	exprs = append(append(exprs, connStatus(statusDNAT, expr.CmpOpNeq)...), condition...)
	return append(exprs,
		&expr.Ct{Key: expr.CtKeyDST, Register: 1, Direction: directionOriginal},
		&expr.Dynset{SrcRegKey: 1, SetName: set.Name, SetID: set.ID, Operation: unix.NFT_DYNSET_OP_UPDATE,
			Exprs: []expr.Any{&expr.Counter{}}})
}

// connStatus compares a bit of the connection's status with 0.
func connStatus(bit uint32, op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, bit),
			Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: 1, Data: make([]byte, 4)},
	}
}

// Remove deletes the tables, and returns their names. Without nftables there are none. It fails at the first table that
// the kernel does not list or delete.
func Remove() (removed []string, err error) {
	if kernel.CheckNFTables() != nil {
		return nil, nil
	}
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	for i, f := range families {
		there, err := f.exists(conn)
		if err != nil {
			return removed, err
		}
		if !there {
			continue
		}
		conn.DelTable(f.Table)
		if err := conn.Flush(); err != nil {
			return removed, fmt.Errorf("nftables: deleting table %s: %w", tableName, err)
		}
		removed = append(removed, []string{"ip ", "ip6 "}[i]+tableName)
	}
	return removed, nil
}
