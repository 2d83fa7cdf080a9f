package guard

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/semaphore/agent/kernel"
)

// ledSeparator is between the names of a base chain and of its map's target, in the name of a chain.
const ledSeparator = "-"

// entry is a rule as the kernel has it.
type entry struct {
	comment string
	exprs   []expr.Any
}

// wanted is the desired content of the table: the rules of each chain, the elements of each map, counters.
type wanted struct {
	chains   map[string][]entry
	elements map[string]elements
	counters map[string]bool
}

// verdictMap leads packets of a direction to the chain of their outermost subnet, or of their port.
type verdictMap struct {
	direction
	key nftables.SetDatatype
}

var verdictMaps = []verdictMap{
	{out, nftables.TypeIPAddr}, {out, nftables.TypeIP6Addr}, {in, nftables.TypeIPAddr}, {in, nftables.TypeIP6Addr},
	{sending, nftables.TypeInetService}, {arriving, nftables.TypeInetService},
}

func (m verdictMap) name() string { return base[m.direction].Name + ledSeparator + m.key.Name }

func (m verdictMap) set() *nftables.Set {
	return &nftables.Set{Table: table, Name: m.name(), ID: uint32(slices.Index(verdictMaps, m) + 1), IsMap: true,
		KeyType: m.key, DataType: nftables.TypeVerdict, Interval: !m.tunnel(), KeyByteOrder: binaryutil.BigEndian}
}

// rule looks up a packet in the map.
func (m verdictMap) rule() entry {
	var exprs []expr.Any
	if m.tunnel() {
		exprs = tunnelPort(m.direction)
	} else {
		exprs = remoteAddress(m.direction, m.key == nftables.TypeIP6Addr)
	}
	return entry{exprs: append(exprs, &expr.Lookup{
		SourceRegister: 1, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: m.name()})}
}

func (all remotes) wanted(inbound bool) wanted {
	w := wanted{chains: map[string][]entry{}, elements: map[string]elements{}, counters: all.counters()}
	for _, m := range verdictMaps {
		w.elements[m.name()] = elements{}
	}
	outermost := all.outermost()
	for _, d := range directions {
		name := base[d].Name
		w.chains[name] = nil
		rules := all.of(d, inbound)
		for _, r := range rules {
			chain := name
			if r.Cluster != "" {
				chain = w.lead(d, r, outermost)
			}
			w.chains[chain] = append(w.chains[chain], entry{comment: r.comment(), exprs: r.expressions(d)})
		}
		for _, m := range verdictMaps {
			if m.direction == d && len(rules) > 0 {
				w.chains[name] = append(w.chains[name], m.rule())
			}
		}
	}
	return w
}

// flat returns the rules of a direction without maps.
func (w wanted) flat(d direction) (rules []entry) {
	for _, chain := range slices.Sorted(maps.Keys(w.chains)) { // a base chain comes before its others
		if name, _, _ := strings.Cut(chain, ledSeparator); name == base[d].Name {
			rules = append(rules, w.chains[chain]...)
		}
	}
	return slices.DeleteFunc(rules, func(e entry) bool { return e.comment == "" })
}

// lead returns the chain of a rule, and adds the elements that lead there.
func (w wanted) lead(d direction, r rule, outermost []netip.Prefix) (chain string) {
	verdict := func(of string) *expr.Verdict {
		chain = base[d].Name + ledSeparator + strings.ReplaceAll(of, ":", "_") // nft(8) takes no colon in a name
		return &expr.Verdict{Kind: expr.VerdictJump, Chain: chain}
	}
	if r.Port != 0 {
		w.elements[verdictMap{d, nftables.TypeInetService}.name()].put(nftables.SetElement{
			Key: binary.BigEndian.AppendUint16(nil, uint16(r.Port)), VerdictData: verdict(strconv.Itoa(r.Port))})
		return chain
	}
	subnet, m := around(outermost, r.Prefix), verdictMap{d, nftables.TypeIPAddr}
	if subnet.Addr().Is6() {
		m.key = nftables.TypeIP6Addr
	}
	interval := []nftables.SetElement{{Key: subnet.Addr().AsSlice(), VerdictData: verdict(subnet.String())}}
	if end := after(subnet); end.IsValid() {
		interval = append(interval, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
	}
	w.elements[m.name()].put(interval...)
	return chain
}

// after returns the first address behind a subnet; an invalid one for none.
func after(prefix netip.Prefix) netip.Addr {
	last := prefix.Addr().AsSlice()
	for i, m := range kernel.IPNet(prefix).Mask {
		last[i] |= ^m
	}
	end, _ := netip.AddrFromSlice(last)
	return end.Next()
}

// elements are those of a map: each key has one, or the two of an interval. They change together, as the kernel refuses
// to change one side of an interval, and in the order of their keys.
type elements map[string][]nftables.SetElement

func (to elements) put(all ...nftables.SetElement) {
	var key []byte
	for _, e := range all {
		key = append(append(append(key, e.Key...), verdictOf(e)...), strconv.FormatBool(e.IntervalEnd)...)
	}
	to[string(key)] = all
}

// elementsOf returns the elements that the kernel has, in whatever order.
func elementsOf(all []nftables.SetElement) elements {
	slices.SortFunc(all, func(a, b nftables.SetElement) int {
		return cmp.Or(bytes.Compare(a.Key, b.Key), cmp.Compare(len(verdictOf(a)), len(verdictOf(b)))) // an end has none
	})
	to := elements{}
	for len(all) > 0 {
		n := 1
		if len(all) > 1 && !all[0].IntervalEnd && all[1].IntervalEnd {
			n = 2
		}
		to.put(all[:n]...)
		all = all[n:]
	}
	return to
}

func (is elements) change(to elements) (remove, add []nftables.SetElement) {
	for _, key := range slices.Sorted(maps.Keys(is)) {
		if _, stays := to[key]; !stays {
			for _, e := range is[key] {
				remove = append(remove, nftables.SetElement{Key: e.Key, IntervalEnd: e.IntervalEnd})
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(to)) {
		if _, there := is[key]; !there {
			add = append(add, to[key]...)
		}
	}
	return remove, add
}

// verdictOf returns the attributes of an element's verdict, which the library writes and does not read.
func verdictOf(e nftables.SetElement) []byte {
	if e.VerdictData == nil {
		return e.Val
	}
	attributes, _ := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_VERDICT_CODE, Data: binary.BigEndian.AppendUint32(nil, uint32(e.VerdictData.Kind))},
		{Type: unix.NFTA_VERDICT_CHAIN, Data: append([]byte(e.VerdictData.Chain), 0)},
	})
	return attributes
}

// encoded returns the rule for comparison.
func (e entry) encoded() string {
	text := append([]byte(e.comment), 0)
	for _, x := range e.exprs {
		one, err := expr.Marshal(byte(table.Family), x)
		if err != nil {
			return e.comment
		}
		text = append(text, one...)
	}
	return string(text)
}
