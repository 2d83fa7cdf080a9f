package admission

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// setMember returns a pod with those of its IPs that are valid for the remote.
func (t *check) setMember(o *semaphorev1.Object) *semaphorev1.Object {
	m := o.GetSetMember()
	if uid := m.GetPodUid(); uid == "" || len(uid) > maxUID {
		t.refuse(finding.InvalidName, "pod_uid has %d characters: use the UID of the pod", len(uid))
		return nil
	}
	if !t.setName(o.GetKey().GetNamespace(), m.GetSetName()) {
		return nil
	}
	if len(m.GetIps()) > maxPodIPs {
		t.refuse(finding.TooLarge, "ips: %d exceed the limit of %d", len(m.GetIps()), maxPodIPs)
		return nil
	}
	kept := make([]string, 0, len(m.GetIps()))
	seen := map[netip.Addr]bool{}
	for _, text := range m.GetIps() {
		if ip, ok := t.podIP("ips:", text, 0); ok && !seen[ip] {
			seen[ip] = true
			kept = append(kept, text)
		}
	}
	if len(kept) == len(m.GetIps()) {
		return o
	}
	taken := clone(o)
	taken.GetSetMember().Ips = kept
	return taken
}

// setName checks that a name is valid as the value of a label, by which policies select the set, and as a part of the
// name of the GlobalNetworkSet.
func (t *check) setName(namespace, name string) bool {
	if name == "" {
		t.refuse(finding.InvalidName, "set_name is empty: give the pod's label a value")
		return false
	}
	if t.tooLong("set_name", name) {
		return false
	}
	for _, e := range validation.IsValidLabelValue(name) {
		t.refuse(finding.InvalidName, "set_name %q: %s", name, e)
		return false
	}
	// The longer one of the two names that the set may get.
	for _, e := range validation.IsDNS1123Subdomain(naming.SetWithSuffix(t.remote.Name, namespace, name)) {
		t.refuse(finding.InvalidName, "set_name %q cannot be a part of the name of a GlobalNetworkSet: %s", name, e)
		return false
	}
	return true
}
