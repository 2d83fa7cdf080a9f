package nodes

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/klog/v2"
)

// This file decides on which nodes an agent is expected: those on which the DaemonSet of the agents can run, as
// Kubernetes' own controller decides it. Other nodes are without encryption, which is no fault.

// virtual are labels by which nodes without a kernel of their own are known: no pod that needs the host's network or a
// privilege runs there, whatever it tolerates.
var virtual = map[string]string{"type": "virtual-kubelet", "eks.amazonaws.com/compute-type": "fargate"}

// Exempt returns why no agent is expected on a node, in a few words; empty if one is. template is that of the
// DaemonSet; nil while it is not known: then an agent is expected on every node that can have one.
func Exempt(node *corev1.Node, template *corev1.PodSpec) string {
	if os := node.Labels[corev1.LabelOSStable]; os != "" && os != "linux" {
		return "its operating system is " + os
	}
	for _, key := range slices.Sorted(maps.Keys(virtual)) {
		if node.Labels[key] == virtual[key] {
			return fmt.Sprintf("it is virtual (%s=%s)", key, virtual[key])
		}
	}
	if template == nil {
		return ""
	}
	for _, key := range slices.Sorted(maps.Keys(template.NodeSelector)) {
		if got, has := node.Labels[key]; !has || got != template.NodeSelector[key] {
			return fmt.Sprintf("the DaemonSet's nodeSelector asks for %s=%s", key, template.NodeSelector[key])
		}
	}
	if a := template.Affinity; a != nil && a.NodeAffinity != nil &&
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil &&
		!matches(node, a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms) {
		return "the DaemonSet's node affinity leaves it out"
	}
	for i := range node.Spec.Taints {
		if t := &node.Spec.Taints[i]; repels(t, template.Tolerations) {
			return fmt.Sprintf("the DaemonSet does not tolerate the taint %s", t.ToString())
		}
	}
	return ""
}

// always are the taints that the controller has the pods of every DaemonSet tolerate.
var always = []corev1.Toleration{
	{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists},
	{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists},
	{Key: corev1.TaintNodeDiskPressure, Operator: corev1.TolerationOpExists},
	{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists},
	{Key: corev1.TaintNodePIDPressure, Operator: corev1.TolerationOpExists},
	{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists},
	{Key: corev1.TaintNodeNetworkUnavailable, Operator: corev1.TolerationOpExists},
}

// repels reports whether a taint keeps a pod with these tolerations off.
func repels(t *corev1.Taint, tolerations []corev1.Toleration) bool {
	if t.Effect == corev1.TaintEffectPreferNoSchedule {
		return false
	}
	return !slices.ContainsFunc(slices.Concat(tolerations, always), func(of corev1.Toleration) bool {
		return of.ToleratesTaint(klog.Background(), t, false)
	})
}

func matches(node *corev1.Node, terms []corev1.NodeSelectorTerm) bool {
	name := labels.Set{metav1.ObjectNameField: node.Name}
	for _, term := range terms {
		if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
			continue // it selects nothing
		}
		if fits(term.MatchExpressions, node.Labels) && fits(term.MatchFields, name) {
			return true
		}
	}
	return false
}

var operators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
	corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
}

// fits reports whether labels meet all requirements. One that cannot be read, such as an operator of a later version,
// leaves no node out: an agent that is missing is reported rather than not.
func fits(all []corev1.NodeSelectorRequirement, have labels.Set) bool {
	for _, r := range all {
		of, err := labels.NewRequirement(r.Key, operators[r.Operator], r.Values)
		if err == nil && !of.Matches(have) {
			return false
		}
	}
	return true
}
