package check

import (
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/coredns"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestNamesThatLeave: a missing block is reported where queries for its names leave the cluster, and the finding names
// the public domain; also in NodeLocal DNSCache, which forwards what CoreDNS would have answered.
func TestNamesThatLeave(t *testing.T) {
	want := coredns.Of([]coredns.Remote{{Cluster: "c2"}, {Cluster: "eu"}}, "semaphore", "cluster.local", true)
	var blocks strings.Builder
	testkit.Must(t, coredns.Print(&blocks, want, false))
	const forwards = ".:53 {\n  forward . /etc/resolv.conf\n}\n"
	const leave = "; queries for them leave for the servers that it forwards to"
	public := func(suffix string) string {
		return leave + ", and as ." + suffix + " is a public domain, the owner of cluster." + suffix + " there could answer"
	}
	for _, test := range []struct {
		name, corefile, cache string
		ends                  map[string]string // by the zone, how the evidence ends
	}{
		{"complete", forwards + blocks.String(), "", nil},
		{"no block", forwards, "", map[string]string{"cluster.c2": leave, "cluster.eu": public("eu"),
			"cluster.global": public("global"), "clusterset.local": leave}},
		{"no block, nothing forwarded", ".:53 {\n}\n", "", map[string]string{"cluster.c2": "are not found",
			"cluster.eu": "are not found", "cluster.global": "are not found", "clusterset.local": "are not found"}},
		{"a cache without blocks", forwards + blocks.String(), "cluster.local:53 {\n}\ncluster.c2:53 {\n}\n" + forwards,
			map[string]string{"cluster.eu": public("eu"), "cluster.global": public("global"), "clusterset.local": leave}},
	} {
		ends := map[string]string{}
		for _, f := range judgeDNS(DNS{Where: "here", Corefile: test.corefile, Cache: test.cache, Want: want, Print: "p"}) {
			if f.Code == finding.CoreDNSComplete {
				continue
			}
			zone, rest, _ := strings.Cut(strings.TrimPrefix(f.Evidence, "it has no server block "), ",")
			ends[zone] = rest
			if f.Code != finding.CoreDNSBlockMissing || f.Fix == "" ||
				(test.cache != "") != (f.Subject == "ConfigMap kube-system/node-local-dns") {
				t.Errorf("%s: %+v", test.name, f)
			}
		}
		if len(ends) != len(test.ends) {
			t.Errorf("%s: %v", test.name, ends)
		}
		for zone, end := range test.ends {
			if !strings.HasSuffix(ends[zone], end) {
				t.Errorf("%s: %s: %q does not end with %q", test.name, zone, ends[zone], end)
			}
		}
	}
}

// TestBlockLeftOut: a block that would answer names of the own cluster is not reported as missing in the Corefile; a
// finding reports that there is none, with a fix.
func TestBlockLeftOut(t *testing.T) {
	local := coredns.Block{Cluster: "local", Prefix: "local", MirrorNamespace: "semaphore",
		ClusterDomain: "cluster.local"}
	want := []coredns.Block{local, coredns.Global("semaphore", "cluster.local")}
	var corefile strings.Builder
	testkit.Must(t, coredns.Print(&corefile, want, false))
	found := judgeDNS(DNS{Where: "here", Corefile: corefile.String(), Want: want, Print: "print"})
	complete(t, found[:1])
	const why = "there can be no block for cluster.local: it would answer names of cluster.local"
	if len(found) != 2 || found[0].Code != finding.CoreDNSBlockMissing || found[0].Fix == "" ||
		!strings.HasPrefix(found[0].Evidence, why) || found[1].Code != finding.CoreDNSComplete {
		t.Errorf("%+v", found)
	}
}
