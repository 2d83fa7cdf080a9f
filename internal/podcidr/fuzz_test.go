package podcidr

import (
	"encoding/json"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/kube"
)

// FuzzBlockAffinity: whatever a BlockAffinity contains, which every node's CNI plugin may write, the result is a node's
// block with a prefix in canonical form, or none.
func FuzzBlockAffinity(f *testing.F) {
	for _, text := range []string{
		`{"spec":{"state":"confirmed","node":"n1","cidr":"10.1.1.0/26","deleted":"false"}}`,
		`{"spec":{"state":"pendingDeletion","node":"n1","cidr":"10.1.1.7/26","deleted":true,"type":"host"}}`,
		`{"metadata":{"creationTimestamp":"2026-01-01T00:00:00Z"},"spec":{"node":"virtual:load-balancer","cidr":"::ffff:10.1.1.0/122"}}`,
		`{"spec":{"node":"n1","cidr":"fe80::1%eth0/64","deleted":"maybe"}}`,
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
	})
}
