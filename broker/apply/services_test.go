package apply

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Fields of a Service that are ours, or would keep it from leading anywhere, become as desired, also where none is
// desired any longer; the rest stays.
func TestMergeService(t *testing.T) {
	affinity := &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](60)}}
	have := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "s", ResourceVersion: "7",
			Labels: map[string]string{"mine": "x", "service.kubernetes.io/service-proxy-name": "nobody",
				naming.LabelMirrored: "true", "team": "old", "tier": "web"},
			Annotations: map[string]string{naming.AnnotationCopiedLabels: "team,tier", "other": "stays",
				corev1.AnnotationTopologyMode: "Auto"}},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.9", SessionAffinity: corev1.ServiceAffinityClientIP,
			SessionAffinityConfig: affinity, TrafficDistribution: ptr.To("PreferClose"),
			ExternalIPs: []string{"192.0.2.1"}, LoadBalancerIP: "192.0.2.2",
			LoadBalancerSourceRanges: []string{"10.0.0.0/8"}, Selector: map[string]string{"app": "x"},
			InternalTrafficPolicy: ptr.To(corev1.ServiceInternalTrafficPolicyLocal)},
	}
	global := map[string]string{naming.LabelGlobal: "true", "team": "new"} // the source has no tier any more
	none := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Labels: global,
		Annotations: map[string]string{"a": "b", naming.AnnotationCopiedLabels: "team"}},
		Spec: corev1.ServiceSpec{SessionAffinity: corev1.ServiceAffinityNone,
			InternalTrafficPolicy: ptr.To(corev1.ServiceInternalTrafficPolicyCluster)}}
	want := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "s", ResourceVersion: "7", Labels: map[string]string{naming.LabelGlobal: "true",
			"mine": "x", "team": "new"},
			Annotations: map[string]string{"other": "stays", "a": "b", naming.AnnotationCopiedLabels: "team"}},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.9", SessionAffinity: corev1.ServiceAffinityNone,
			InternalTrafficPolicy: ptr.To(corev1.ServiceInternalTrafficPolicyCluster)},
	}
	before := have.DeepCopy()
	out := mergeService(have, none)
	if d := cmp.Diff(want, out); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if d := cmp.Diff(before, have); d != "" {
		t.Errorf("it changed what is there:\n%s", d)
	}
	all := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{naming.LabelMirrored: "true"},
		Annotations: map[string]string{"a": "b"}},
		Spec: corev1.ServiceSpec{SessionAffinity: corev1.ServiceAffinityClientIP, SessionAffinityConfig: affinity,
			TrafficDistribution: ptr.To("PreferSameZone")}}
	again := mergeService(have, all)
	if again.Spec.SessionAffinityConfig != affinity || *again.Spec.TrafficDistribution != "PreferSameZone" {
		t.Errorf("%+v", again.Spec)
	}
	if again.Annotations[corev1.AnnotationTopologyMode] != "Auto" {
		t.Error("of a mirror the annotation is somebody else's")
	}
	all.Labels = map[string]string{naming.LabelImported: "true"}
	if _, has := mergeService(have, all).Annotations[corev1.AnnotationTopologyMode]; has {
		t.Error("a derived Service keeps the broker's own annotation")
	}
}

// A slice whose endpoints are in use again lists none that are not, and an annotation of somebody else stays.
func TestMergeSliceForgetsUnusedEndpoints(t *testing.T) {
	have := slice("s", "c2", "IPv4", "10.2.0.1")
	have.Annotations = map[string]string{naming.AnnotationUnusedEndpoints: "10.2.0.1", "other": "stays"}
	out := sliceKind(writes.EndpointSlice).Merge(have, slice("s", "c2", "IPv4", "10.2.0.1"))
	if d := cmp.Diff(map[string]string{"other": "stays"}, out.Annotations); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}
