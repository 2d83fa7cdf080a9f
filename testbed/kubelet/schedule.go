//go:build linux

package kubelet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/klog/v2"
)

// AddressAnnotation on a pod asks for an exact pod IP. The pod goes to the node whose PodCIDR has the address, and waits
// while the address is another pod's.
const AddressAnnotation = "testbed.semaphore/ip"

// candidate is a node as the choice sees it.
type candidate struct {
	node    *corev1.Node
	podCIDR netip.Prefix
}

// choose picks the node for a pod: of those that the pod's node selector, required node affinity, tolerations and
// AddressAnnotation admit, the one with the fewest pods of the same owner, then the fewest pods, then the first. placed
// are the pods that have a node. The error says, node by node, why none was admitted.
func choose(pod *corev1.Pod, candidates []candidate, placed []*corev1.Pod) (string, error) {
	var why []string
	best, bestSiblings, bestPods := "", 0, 0
	for _, c := range candidates {
		name := c.node.Name
		if reason := misfit(pod, c); reason != "" {
			why = append(why, name+": "+reason)
			continue
		}
		siblings, pods := 0, 0
		for _, p := range placed {
			if p.Spec.NodeName != name || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
				continue
			}
			pods++
			if a, b := metav1.GetControllerOf(p), metav1.GetControllerOf(pod); a != nil && b != nil && a.UID == b.UID {
				siblings++
			}
		}
		if best == "" || siblings < bestSiblings || siblings == bestSiblings && pods < bestPods {
			best, bestSiblings, bestPods = name, siblings, pods
		}
	}
	if best == "" {
		return "", fmt.Errorf("none of %d nodes fits: %s", len(candidates), strings.Join(why, "; "))
	}
	return best, nil
}

// misfit says why a pod may not run on a node, or "".
func misfit(pod *corev1.Pod, c candidate) string {
	set := labels.Set(c.node.Labels)
	if !labels.SelectorFromSet(pod.Spec.NodeSelector).Matches(set) {
		return "labels do not match nodeSelector"
	}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		if required := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			matches := func(t corev1.NodeSelectorTerm) bool { return matchesTerm(t, c.node) }
			if !slices.ContainsFunc(required.NodeSelectorTerms, matches) {
				return "does not match node affinity"
			}
		}
	}
	// Taints that tell a node's condition are the node lifecycle controller's, and none runs to take them away: admission
	// gives every new node one.
	taints := slices.DeleteFunc(slices.Clone(c.node.Spec.Taints), func(t corev1.Taint) bool {
		return strings.HasPrefix(t.Key, "node.kubernetes.io/")
	})
	if c.node.Spec.Unschedulable {
		taints = append(taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	for _, taint := range taints {
		tolerated := slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
			return t.ToleratesTaint(klog.Background(), &taint, false)
		})
		if taint.Effect != corev1.TaintEffectPreferNoSchedule && !tolerated {
			return "taint " + taint.Key + " is not tolerated"
		}
	}
	if want := pod.Annotations[AddressAnnotation]; want != "" {
		ip, err := netip.ParseAddr(want)
		if err != nil {
			return fmt.Sprintf("annotation %s: %v", AddressAnnotation, err)
		}
		if !c.podCIDR.Contains(ip) {
			return fmt.Sprintf("annotation %s: %s is not in %s", AddressAnnotation, ip, c.podCIDR)
		}
	}
	return ""
}

// matchesTerm tells whether a node meets all requirements of a term. As in Kubernetes an empty term meets none.
func matchesTerm(term corev1.NodeSelectorTerm, node *corev1.Node) bool {
	if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
		return false
	}
	set := labels.Set(node.Labels)
	fields := labels.Set{"metadata.name": node.Name}
	for _, e := range term.MatchExpressions {
		if !matchesRequirement(e, set) {
			return false
		}
	}
	for _, f := range term.MatchFields {
		if !matchesRequirement(f, fields) {
			return false
		}
	}
	return true
}

func matchesRequirement(r corev1.NodeSelectorRequirement, set labels.Set) bool {
	operators := map[corev1.NodeSelectorOperator]selection.Operator{
		corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
		corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
		corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
	}
	requirement, err := labels.NewRequirement(r.Key, operators[r.Operator], r.Values)
	return err == nil && requirement.Matches(set)
}
