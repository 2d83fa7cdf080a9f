//go:build linux

package kubelet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// errAddressInUse says that the address a pod asks for is another pod's for now.
var errAddressInUse = errors.New("address is in use")

// addresses gives out the pod IPs of one node. Addresses that were never used come first, lowest first; then those that
// were given back, the longest unused first, so that an address is not another pod's at once by accident.
type addresses struct {
	prefix netip.Prefix
	next   netip.Addr // below it all were given out at some time
	used   map[netip.Addr]bool
	freed  []netip.Addr // in the order they were given back
}

// newAddresses leaves out the first two addresses (the network's own, and the one host-local IPAM keeps for a gateway)
// and the last, the broadcast address.
func newAddresses(prefix netip.Prefix) (*addresses, error) {
	if !prefix.IsValid() || !prefix.Addr().Is4() || prefix.Bits() > 29 {
		return nil, fmt.Errorf("PodCIDR %s: want an IPv4 prefix of at most 29 bits", prefix)
	}
	prefix = prefix.Masked()
	return &addresses{
		prefix: prefix, next: prefix.Addr().Next().Next(), used: map[netip.Addr]bool{},
	}, nil
}

// take reserves the address wanted, or any if that is the zero Addr. The error is errAddressInUse when waiting helps.
func (a *addresses) take(want netip.Addr) (netip.Addr, error) {
	if want.IsValid() {
		first := a.prefix.Addr().Next().Next()
		if !a.prefix.Contains(want) || want.Less(first) || !a.prefix.Contains(want.Next()) {
			return netip.Addr{}, fmt.Errorf("address %s is no pod address of %s", want, a.prefix)
		}
		if a.used[want] {
			return netip.Addr{}, fmt.Errorf("%s: %w", want, errAddressInUse)
		}
		a.freed = slices.DeleteFunc(a.freed, func(f netip.Addr) bool { return f == want })
		a.used[want] = true
		return want, nil
	}
	for ; a.prefix.Contains(a.next.Next()); a.next = a.next.Next() {
		if ip := a.next; !a.used[ip] && !slices.Contains(a.freed, ip) {
			a.used[ip] = true
			return ip, nil
		}
	}
	if len(a.freed) == 0 {
		return netip.Addr{}, fmt.Errorf("all addresses of %s: %w", a.prefix, errAddressInUse)
	}
	ip := a.freed[0]
	a.freed = a.freed[1:]
	a.used[ip] = true
	return ip, nil
}

// giveBack ends a reservation.
func (a *addresses) giveBack(ip netip.Addr) {
	if a.used[ip] {
		delete(a.used, ip)
		a.freed = append(a.freed, ip)
	}
}
