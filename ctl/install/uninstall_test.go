package install

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/ctl/apply"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// TestPlanRemotes: uninstall names the clusters that are read from here, including one whose RemoteCluster is gone, but
// does not take a hash for a name. Printed commands have the namespace.
func TestPlanRemotes(t *testing.T) {
	const dotted = "eu-1.example.com"
	r := &removal{Applier: &apply.Applier{Cluster: &fleet.Cluster{Context: "k1", Namespace: "sys"}},
		record:  &apply.Record{},
		remotes: []string{"c2", dotted, "linked"}}
	for _, cluster := range []string{"c2", dotted, "half-removed", "half.removed.example.com"} {
		r.beside = append(r.beside, apply.NamespaceRef(naming.ForeignNamespace(cluster)))
	}
	var said string
	r.planRemotes(func(format string, args ...any) { said += fmt.Sprintf(format, args...) + "\n" })
	if want := []string{"c2", dotted, "half-removed"}; !slices.Equal(r.read, want) {
		t.Errorf("read from here are %q, not %q", r.read, want)
	}
	for _, want := range []string{"the RemoteClusters linked;",
		"semaphorectl unlink --context k1 -n sys --agentless CONTEXT=" + dotted + " --yes\n"} {
		if !strings.Contains(said, want) {
			t.Errorf("it lacks %q:\n%s", want, said)
		}
	}
	if strings.Count(said, "reads-") != 2 { // the namespaces
		t.Errorf("a hash is taken for a cluster:\n%s", said)
	}
}
