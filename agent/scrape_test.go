package agent

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestPeerMetricsAreNotPublic: only the node itself, and the hosts that the configuration names, can read metrics with
// remotes' nodes, keys and addresses.
func TestPeerMetricsAreNotPublic(t *testing.T) {
	a := idle(t)
	reg := prometheus.NewRegistry()
	a.register(reg)
	addr := netip.MustParseAddr
	node := addr("192.0.2.9")
	for from, want := range map[string]bool{
		"127.0.0.1": true, "::1": true, "192.0.2.9": true, // the node
		"10.1.3.4":        false, // a pod of the own cluster
		"10.2.3.4":        false, // a pod of a remote
		"192.0.2.17":      false, // a node of a remote
		"192.0.2.10":      false, // another node of the own cluster
		"::ffff:10.2.3.4": false,
		"2001:db8::1":     false,
		"169.254.1.1":     false,
	} {
		if got := a.pages(reg).Trusted(node, addr(from).Unmap()); got != want {
			t.Errorf("%s: trusted %t", from, got)
		}
	}
	a.cfg.PeerMetricsPrefixes = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	if p := a.pages(reg); !p.Trusted(node, addr("10.1.3.4")) || p.Trusted(node, addr("10.2.3.4")) {
		t.Error("the subnets that the configuration names are not the ones that are trusted")
	}
	// The public page has no label with a key or an address, whatever the devices are.
	descs := make(chan *prometheus.Desc, 1000)
	for _, c := range a.collectors() {
		c.Describe(descs)
	}
	close(descs)
	for d := range descs {
		_, labels, _ := strings.Cut(d.String(), "variableLabels")
		for _, label := range []string{"public_key", "endpoint", "allowed_ips", "address"} {
			if strings.Contains(labels, label+",") || strings.Contains(labels, label+"}") {
				t.Errorf("everybody reads %s", d)
			}
		}
	}
}
