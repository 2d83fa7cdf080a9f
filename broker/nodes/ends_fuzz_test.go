package nodes

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FuzzEnds: whatever a kubelet writes onto its Node, the keys on it have the length of keys, and its addresses are
// some.
func FuzzEnds(f *testing.F) {
	f.Add("c2.wireguard.semaphore.uw.io/pubKey", "CQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQk=", "172.18.1.11")
	f.Add(".wireguard.semaphore.uw.io/pubKey", "c2hvcnQ=", "fe80::1%eth0")
	f.Add("c2.wireguard.semaphore.uw.io/endpoint", "\xff", "::ffff:10.0.0.1")
	f.Fuzz(func(t *testing.T, key, value, address string) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{key: value}}}
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
		name, keys, addresses := Ends(node, false)
		if name != "n1" || len(keys) > 1 || len(keys) == 1 && len(keys[0]) != 32 || len(addresses) > 1 ||
			len(addresses) == 1 && !addresses[0].IsValid() {
			t.Errorf("%q: %q and %q are taken as %x and %v", key, value, address, keys, addresses)
		}
	})
}
