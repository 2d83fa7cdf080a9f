//go:build linux

package kubelet

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func testNode(name string, change func(*corev1.Node)) candidate {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, "zone": "z-" + name}}}
	if change != nil {
		change(n)
	}
	return candidate{n, netip.MustParsePrefix("10.1." + strings.TrimPrefix(name, "n") + ".0/24")}
}

func TestChoose(t *testing.T) {
	owned := func(p corev1.Pod, owner string) *corev1.Pod {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{UID: types.UID(owner), Controller: &yes}}
		return &p
	}
	on := func(node string) corev1.Pod { return corev1.Pod{Spec: corev1.PodSpec{NodeName: node}} }
	affinity := func(term corev1.NodeSelectorTerm) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}},
		}}}}
	}
	a, b, done := on("n1"), on("n2"), on("n1")
	done.Status.Phase = corev1.PodSucceeded
	two := []candidate{testNode("n1", nil), testNode("n2", nil)}
	cordoned := []candidate{testNode("n1", func(n *corev1.Node) { n.Spec.Unschedulable = true }), testNode("n2", nil)}
	for _, tc := range []struct {
		name   string
		pod    *corev1.Pod
		nodes  []candidate
		placed []*corev1.Pod
		want   string // or part of the error
	}{
		{"first of equals", &corev1.Pod{}, two, nil, "n1"},
		{"fewest pods", &corev1.Pod{}, two, []*corev1.Pod{&a, &a, &b}, "n2"},
		{"finished pods do not count", &corev1.Pod{}, two, []*corev1.Pod{&done, &done, &b}, "n1"},
		{"siblings are spread first", owned(corev1.Pod{}, "x"), two, []*corev1.Pod{owned(on("n1"), "x"), &b, &b, owned(on("n2"), "y")}, "n2"},
		{"node selector", &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{corev1.LabelHostname: "n2"}}}, two, nil, "n2"},
		{"daemonset", affinity(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n2"}}}}), two, nil, "n2"},
		{"affinity by label", affinity(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "zone", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"z-n1"}}}}), two, nil, "n2"},
		{"empty term", affinity(corev1.NodeSelectorTerm{}), two, nil, "n1: does not match node affinity; n2: does not match"},
		{"cordoned", &corev1.Pod{}, cordoned, []*corev1.Pod{&b}, "n2"},
		{"cordon tolerated", &corev1.Pod{Spec: corev1.PodSpec{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}},
			cordoned, []*corev1.Pod{&b}, "n1"},
		{"taints", &corev1.Pod{}, []candidate{
			testNode("n1", func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
			}),
			testNode("n2", func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: "node.kubernetes.io/not-ready", Effect: corev1.TaintEffectNoSchedule}}
			})}, nil, "n2"},
		{"exact address", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AddressAnnotation: "10.1.2.9"}}}, two, nil, "n2"},
		{"address of no node", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AddressAnnotation: "10.9.2.9"}}},
			two, nil, "10.9.2.9 is not in 10.1.1.0/24"},
		{"bad address", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AddressAnnotation: "x"}}}, two, nil, AddressAnnotation},
		{"no nodes", &corev1.Pod{}, nil, nil, "none of 0 nodes"},
	} {
		got, err := choose(tc.pod, tc.nodes, tc.placed)
		if err != nil {
			got = err.Error()
		}
		if err == nil && got != tc.want || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}
