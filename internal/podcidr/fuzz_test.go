package podcidr

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
)

// FuzzBlockAffinity: whatever a BlockAffinity contains, which every node's CNI plugin may write, its metadata, too, the
// result is a node's block with a prefix in canonical form, or none. Beside it another node keeps the block that it had
// first, and nothing stays of an affinity that is deleted.
func FuzzBlockAffinity(f *testing.F) {
	for _, text := range []string{
		`{"spec":{"state":"confirmed","node":"n1","cidr":"10.1.1.0/26","deleted":"false"}}`,
		`{"spec":{"state":"pendingDeletion","node":"n1","cidr":"10.1.1.7/26","deleted":true,"type":"host"}}`,
		`{"metadata":{"creationTimestamp":"2026-01-01T00:00:00Z"},` +
			`"spec":{"node":"virtual:load-balancer","cidr":"::ffff:10.1.1.0/122"}}`,
		`{"spec":{"node":"n1","cidr":"fe80::1%eth0/64","deleted":"maybe"}}`,
		`{"metadata":{"name":"a","uid":"1","creationTimestamp":"2026-01-03T00:00:00Z"},` +
			`"spec":{"node":"n1","cidr":"10.1.2.0/25"}}`,
		`{"metadata":{"name":"n2-10-1-2-0-26"},"spec":{"node":"n3","cidr":"10.1.2.0/26","state":"confirmed"}}`,
		`{"metadata":{"creationTimestamp":"0001-01-01T00:00:00Z","uid":"","labels":{"a":"b"}},` +
			`"spec":{"node":"","cidr":"::/0"}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var a kube.BlockAffinity
		if json.Unmarshal(data, &a) != nil {
			return
		}
		b := projectBlock(&a)
		if b.ok && (b.problem != "" || !b.cidr.IsValid() || b.cidr.Prefix != b.cidr.Masked() || b.cidr.Addr().Zone() != "" ||
			b.node != a.Spec.Node) {
			t.Errorf("%q is taken as %+v", data, b)
		}

		table := New(config.CalicoBlocks, []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")})
		first := &kube.BlockAffinity{ObjectMeta: metav1.ObjectMeta{Name: "n2-10-1-2-0-26",
			CreationTimestamp: metav1.Unix(1_767_300_000, 0)}, Spec: kube.BlockAffinitySpec{State: confirmed, Node: "n2",
			CIDR: "10.1.2.0/26"}}
		for _, node := range []string{"n1", "n2"} {
			table.PutNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
		}
		table.PutBlock(first)
		table.PutBlock(&a)
		for _, node := range []string{"n1", "n2"} {
			for _, text := range table.Prefixes(node) {
				prefix, err := netip.ParsePrefix(text)
				if err != nil || prefix != prefix.Masked() || !Within(prefix, table.subnets) {
					t.Errorf("%q: %s has %q", data, node, text)
				}
			}
		}
		later := a.Name != first.Name && a.CreationTimestamp.Unix() > first.CreationTimestamp.Unix()
		if later && a.Spec.Node != "n2" && !slices.Equal(table.Prefixes("n2"), []string{"10.1.2.0/26"}) {
			t.Errorf("%q leaves n2 %q", data, table.Prefixes("n2"))
		}
		table.DeleteBlock(a.Name)
		table.DeleteBlock(first.Name)
		table.DeleteNode("n1")
		table.DeleteNode("n2")
		if !table.Empty() {
			t.Errorf("%q leaves %+v", data, table)
		}
	})
}
