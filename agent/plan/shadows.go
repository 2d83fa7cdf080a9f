package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-semaphore/semaphore/agent/kernel"
)

// Shadows describes the routes of other programs in the agent's table that lead packets for a device's subnets past
// it. A route in place of the agent's is not included: AddRoute reports it.
func Shadows(device string, subnets []netip.Prefix, others []kernel.Foreign) []string {
	var lines []string
	for _, r := range others {
		in := slices.IndexFunc(subnets, func(s netip.Prefix) bool { return Inside(r.Prefix, []netip.Prefix{s}) })
		if in < 0 || r.Prefix == subnets[in] && r.Metric >= kernel.MetricOf(r.Prefix) {
			continue
		}
		lines = append(lines, fmt.Sprintf("route %s (%s) leads packets for %s past %s, where they are stopped: remove it",
			r.Prefix, r.Text, subnets[in], device))
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}
