package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-semaphore/semaphore/agent/wireguard"
)

// Inside says whether a route to prefix can concern packets to one of the subnets more than a route to the whole
// subnet does: it is to the same prefix, or to a part of it.
func Inside(prefix netip.Prefix, subnets []netip.Prefix) bool { return within(prefix, subnets) }

// Shadows are those routes of others in our table that lead packets for a device's subnets past it, each in a sentence.
// One in the very place of ours is not among them: that one is told where ours cannot be made.
func Shadows(device string, subnets []netip.Prefix, others []wireguard.Foreign) []string {
	var lines []string
	for _, r := range others {
		in := slices.IndexFunc(subnets, func(s netip.Prefix) bool { return within(r.Prefix, []netip.Prefix{s}) })
		if in < 0 || r.Prefix == subnets[in] && r.Metric >= wireguard.MetricOf(r.Prefix) {
			continue
		}
		lines = append(lines, fmt.Sprintf("route %s (%s) leads packets for %s past %s, where they are stopped: remove it", r.Prefix, r.Text, subnets[in], device))
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}
