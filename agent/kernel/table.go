package kernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RouteProtocol marks the agent's routes and rules, see "protocol" in ip-route(8). The number is in the range for
// administrators.
const RouteProtocol = 94

// Defaults of the configuration. The table is not one of Felix's (RouteTableRanges, 1-250). The rule comes after that
// of the local table (0), which has the node's own addresses, and before those of Calico's WireGuard (99) and of the
// main table (32766).
const (
	DefaultTableID      = 7394
	DefaultRulePriority = 94
)

// RoutingTable is the agent's routing table, and the priority of the rules that lead to it, one for each family.
type RoutingTable struct{ ID, Priority int }

func DefaultRoutingTable() RoutingTable { return RoutingTable{DefaultTableID, DefaultRulePriority} }

// families are all families, in the order in which they are handled.
var families = []int{netlink.FAMILY_V4, netlink.FAMILY_V6}

func Family(prefix netip.Prefix) int {
	if prefix.Addr().Is6() {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

func familyName(family int) string {
	if family == netlink.FAMILY_V6 {
		return "IPv6"
	}
	return "IPv4"
}

// leadsTo reports whether a rule makes all packets be looked up in the table.
func (t RoutingTable) leadsTo(r netlink.Rule) bool {
	return r.Priority == t.Priority && r.Table == t.ID && matchesAll(r)
}

func matchesAll(r netlink.Rule) bool {
	return r.Src == nil && r.Dst == nil && r.Mark == 0 && r.IifName == "" && r.OifName == "" && !r.Invert && r.Goto < 0 &&
		r.Tos == 0 && r.IPProto == 0 && r.Dport == nil && r.Sport == nil && r.UIDRange == nil && r.SuppressPrefixlen < 0 &&
		r.SuppressIfgroup < 0 && r.TunID == 0
}

func rules(family int) ([]netlink.Rule, error) {
	all, err := netlink.RuleList(family)
	switch {
	case lacksFamily(err):
		return nil, nil
	case err != nil && !errors.Is(err, netlink.ErrDumpInterrupted):
		return nil, fmt.Errorf("routing rules of %s: %w", familyName(family), err)
	}
	return all, nil
}

// LacksIPv6 reports whether no packet of IPv6 can leave, as with ipv6.disable=1.
func LacksIPv6() bool {
	_, err := netlink.RuleList(netlink.FAMILY_V6)
	return lacksFamily(err)
}

// lacksFamily reports whether a request failed because the kernel lacks its family.
func lacksFamily(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)
}

// Ruled reports whether a rule of a family leads to the table. It fails if the kernel does not list the rules.
func (t RoutingTable) Ruled(family int) (bool, error) {
	all, err := rules(family)
	return slices.ContainsFunc(all, t.leadsTo), err
}

// Rule adds the rule of a family. It then deletes rules of the agent that lead elsewhere, as after a change of the
// configuration, but not to a table that still has routes into other devices. It reports whether it changed anything.
// It fails if the kernel does not list rules or routes, or refuses a change.
func (t RoutingTable) Rule(family int) (changed bool, err error) {
	all, err := rules(family)
	if err != nil {
		return false, err
	}
	if !slices.ContainsFunc(all, t.leadsTo) {
		if err := netlink.RuleAdd(t.rule(family)); err != nil && !errors.Is(err, unix.EEXIST) {
			return false, fmt.Errorf("routing rule %d of %s for table %d: %w", t.Priority, familyName(family), t.ID, err)
		}
		changed = true
	}
	for _, r := range all {
		if r.Protocol != RouteProtocol || t.leadsTo(r) {
			continue
		}
		used := false
		if r.Table != t.ID {
			filter := RouteFilter{Family: family, Protocol: RouteProtocol, Type: unix.RTN_UNICAST}
			err = errors.Join(err, RoutingTable{ID: r.Table}.Each(filter, func(Route) { used = true }))
		}
		if !used && err == nil {
			r.Family = family
			changed, err = true, deleteRule(r)
		}
	}
	return changed, err
}

func (t RoutingTable) rule(family int) *netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table, r.Protocol = family, t.Priority, t.ID, RouteProtocol
	return r
}

func deleteRule(r netlink.Rule) error {
	if err := netlink.RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("deleting routing rule %d for table %d: %w", r.Priority, r.Table, err)
	}
	return nil
}

// DeleteUnusedRules deletes the agent's rules of families without a route of the agent. It fails for all that the
// kernel does not list or delete, and continues with the rest.
func DeleteUnusedRules() (failed error) {
	for _, family := range families {
		ours, err := routesOf(family)
		if err == nil && len(ours) == 0 {
			_, err = deleteRules(family)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

func routesOf(family int) (ours []Route, err error) {
	filter := RouteFilter{Family: family, Protocol: RouteProtocol}
	err = RoutingTable{}.Each(filter, func(r Route) { ours = append(ours, r) })
	return ours, err
}

// deleteRules deletes the agent's rules of a family, and returns a line for each.
func deleteRules(family int) (gone []string, failed error) {
	all, failed := rules(family)
	for _, r := range all {
		if r.Protocol != RouteProtocol {
			continue
		}
		r.Family = family
		if err := deleteRule(r); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		gone = append(gone, fmt.Sprintf("%s rule %d for table %d", familyName(family), r.Priority, r.Table))
	}
	return gone, failed
}

// RemoveRouting deletes every route and rule of the agent in every table, and returns a line for each. Rules are
// deleted first: from then on packets follow the main table, and not a part of the agent's. It fails as
// DeleteUnusedRules does.
func RemoveRouting() (gone []string, failed error) {
	for _, family := range families {
		rules, err := deleteRules(family)
		gone, failed = append(gone, rules...), errors.Join(failed, err)
		ours, err := routesOf(family)
		failed = errors.Join(failed, err)
		for _, r := range ours {
			if err := r.Delete(); err != nil {
				failed = errors.Join(failed, err)
				continue
			}
			gone = append(gone, r.Name())
		}
	}
	return gone, failed
}

func IPNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
}
