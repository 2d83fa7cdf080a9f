package agent

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/test/nodetest"
)

// TestR27ForeignRoutesAreNotMadeOnANode: the agent does not create a route that no remote can have, although the broker
// desires it, and reports it; it does everything else.
func TestR27ForeignRoutesAreNotMadeOnANode(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		b, cfg := newBroker(t, "c2", "c3")
		cfg.LocalPrefixes = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
		ip(t, "link add uplink type bridge")
		ip(t, "addr add 192.0.2.1/24 dev uplink")
		ip(t, "link set uplink up")
		run(t, cfg, "wireguard.c2", "wireguard.c3")
		b.say(
			deviceOf("c2", 51820, "10.2.0.0/16", "10.1.0.0/24", "192.0.2.0/24", "0.0.0.0/1"),
			peerOf("c2", "n1", publicKey(1), "192.0.2.2:51820", "10.2.1.0/24"),
			peerOf("c2", "thief", publicKey(3), "192.0.2.4:51820", "192.0.2.1/32"),
			deviceOf("c3", 51821, "10.3.0.0/16"),
			peerOf("c3", "n1", publicKey(2), "192.0.2.3:51820", "10.3.1.0/24"),
		)
		host := newHost(t)
		routes := func(name string) string {
			d, err := host.Device(name)
			if d == nil || err != nil { // the device is being created
				return ""
			}
			return fmt.Sprint(d.Routes, len(d.Peers))
		}
		eventually(t, "c3 is programmed", func() bool { return routes("wireguard.c3") == "[10.3.0.0/16] 1" })
		eventually(t, "what of c2 may be is programmed", func() bool { return routes("wireguard.c2") == "[10.2.0.0/16] 1" })
		for _, word := range []string{"10.1.0.0/24 overlaps 10.1.0.0/16 of the own cluster",
			"192.0.2.0/24 contains 192.0.2.1", "0.0.0.0/1 is wider", "peer thief"} {
			eventually(t, "the report has "+word, func() bool { return strings.Contains(b.reportOf("c2").GetProblem(), word) })
		}
		shows(t, `semaphore_agent_refused{cluster="c2",device="wireguard.c2"}`, "4")
		shows(t, `semaphore_agent_refused{cluster="c3",device="wireguard.c3"}`, "0")
		if problem := b.reportOf("c3").GetProblem(); problem != "" {
			t.Errorf("c3: %s", problem)
		}
		// The change was observed two seconds ago.
		changed := peerOf("c3", "n1", publicKey(2), "192.0.2.3:51820", "10.3.2.0/24")
		changed.ObservedAt = timestamppb.New(time.Now().Add(-2 * time.Second))
		b.say(changed)
		eventually(t, "the change is counted",
			func() bool { return metric(t, `semaphore_agent_propagation_seconds_count{cluster="c3"}`) == "1" })
		shows(t, `semaphore_agent_propagation_seconds_bucket{cluster="c3",le="1.28"}`, "0")
	})
}
