package check

import (
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/coredns"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

// TestBlockLeftOut: a block that would answer names of the own cluster is not reported as missing in the Corefile; a
// finding reports that there is none, with a fix.
func TestBlockLeftOut(t *testing.T) {
	local := coredns.Block{Cluster: "local", Prefix: "local", MirrorNamespace: "semaphore",
		ClusterDomain: "cluster.local"}
	want := []coredns.Block{local, coredns.Global("semaphore", "cluster.local")}
	var corefile strings.Builder
	if err := coredns.Print(&corefile, want); err != nil {
		t.Fatal(err)
	}
	found := judgeDNS(DNS{Where: "here", Corefile: corefile.String(), Want: want, Print: "print"})
	complete(t, found[:1])
	const why = "there can be no block for cluster.local: it would answer names of cluster.local"
	if len(found) != 2 || found[0].Code != finding.CoreDNSBlockMissing || found[0].Fix == "" ||
		!strings.HasPrefix(found[0].Evidence, why) || found[1].Code != finding.CoreDNSComplete {
		t.Errorf("%+v", found)
	}
}
