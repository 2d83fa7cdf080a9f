package nodes

import (
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// TestExempt: on which nodes no agent is expected, by the node and the template of the DaemonSet.
func TestExempt(t *testing.T) {
	const shipped = "{nodeSelector: {kubernetes.io/os: linux}, tolerations: [{operator: Exists}]}"
	for _, c := range []struct {
		name, labels, taints string
		// template is YAML; empty for one that is not known.
		template string
		want     string
	}{
		{"Linux", "kubernetes.io/os: linux", "", shipped, ""},
		{"Windows", "kubernetes.io/os: windows", "", shipped, "operating system is windows"},
		{"Windows, and the DaemonSet is not known", "kubernetes.io/os: windows", "", "", "operating system is windows"},
		{"a virtual kubelet", "kubernetes.io/os: linux, type: virtual-kubelet",
			"{key: virtual-kubelet.io/provider, value: azure, effect: NoSchedule}", shipped, "it is virtual"},
		{"Fargate", "kubernetes.io/os: linux, eks.amazonaws.com/compute-type: fargate",
			"{key: eks.amazonaws.com/compute-type, value: fargate, effect: NoSchedule}", shipped, "it is virtual"},
		{"the DaemonSet is not known", "pool: gpu", "{key: gpu, effect: NoSchedule}", "", ""},
		{"without the label that the DaemonSet asks for", "kubernetes.io/os: linux", "",
			"{nodeSelector: {mesh: 'yes'}}", "nodeSelector asks for mesh=yes"},
		{"with it", "mesh: 'yes'", "", "{nodeSelector: {mesh: 'yes'}}", ""},
		{"no label for the operating system", "", "", shipped, "nodeSelector asks for kubernetes.io/os=linux"},
		{"a taint that is not tolerated", "", "{key: gpu, value: a, effect: NoSchedule}", "{}", "taint gpu=a:NoSchedule"},
		{"a taint that evicts", "", "{key: gpu, effect: NoExecute}", "{}", "taint gpu:NoExecute"},
		{"a taint that is only a preference", "", "{key: gpu, effect: PreferNoSchedule}", "{}", ""},
		{"a taint that is tolerated by its value", "", "{key: gpu, value: a, effect: NoSchedule}",
			"{tolerations: [{key: gpu, value: a}]}", ""},
		{"a taint of another value", "", "{key: gpu, value: b, effect: NoSchedule}",
			"{tolerations: [{key: gpu, value: a}]}", "taint gpu=b"},
		{"a taint with another effect", "", "{key: gpu, effect: NoExecute}",
			"{tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}]}", "taint gpu"},
		{"the node is not ready", "", "{key: node.kubernetes.io/not-ready, effect: NoExecute}", "{}", ""},
		{"the node is cordoned", "", "{key: node.kubernetes.io/unschedulable, effect: NoSchedule}", "{}", ""},
		{"the broker's own taint", "kubernetes.io/os: linux",
			"{key: semaphore.uw.io/agent-not-ready, effect: NoSchedule}", shipped, ""},
		{"an affinity that takes it", "pool: a", "",
			affinity("{matchExpressions: [{key: pool, operator: In, values: [a, b]}]}"), ""},
		{"an affinity that leaves it out", "pool: c", "",
			affinity("{matchExpressions: [{key: pool, operator: In, values: [a, b]}]}"), "node affinity"},
		{"NotIn", "pool: c", "", affinity("{matchExpressions: [{key: pool, operator: NotIn, values: [c]}]}"),
			"node affinity"},
		{"the second term takes it", "pool: c", "", affinity("{matchExpressions: [{key: pool, operator: DoesNotExist}]}, " +
			"{matchExpressions: [{key: pool, operator: Exists}]}"), ""},
		{"Gt", "cpus: '8'", "", affinity("{matchExpressions: [{key: cpus, operator: Gt, values: ['4']}]}"), ""},
		{"Lt", "cpus: '8'", "", affinity("{matchExpressions: [{key: cpus, operator: Lt, values: ['4']}]}"), "node affinity"},
		{"by name", "", "", affinity("{matchFields: [{key: metadata.name, operator: In, values: [n1]}]}"), ""},
		{"by another name", "", "", affinity("{matchFields: [{key: metadata.name, operator: In, values: [n2]}]}"),
			"node affinity"},
		{"a term that selects nothing", "", "", affinity("{}"), "node affinity"},
		{"an operator of a later version", "", "",
			affinity("{matchExpressions: [{key: pool, operator: Like, values: [c]}]}"), ""},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
		testkit.Must(t, yaml.Unmarshal([]byte("{"+c.labels+"}"), &node.Labels))
		testkit.Must(t, yaml.Unmarshal([]byte("["+c.taints+"]"), &node.Spec.Taints))
		var template *corev1.PodSpec
		if c.template != "" {
			template = &corev1.PodSpec{}
			testkit.Must(t, yaml.Unmarshal([]byte(c.template), template))
		}
		if got := Exempt(node, template); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q; want %q", c.name, got, c.want)
		}
	}
}

func affinity(terms string) string {
	return "{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [" + terms +
		"]}}}}"
}
