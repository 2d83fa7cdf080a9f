package apply

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Unready returns the reason why an object with pods is not ready; empty if the rollout is complete. It fails for a
// failed Job. The rules are those of `kubectl rollout status`.
func Unready(o *unstructured.Unstructured) (string, error) {
	status := func(field string) int64 {
		n, _, _ := unstructured.NestedInt64(o.Object, "status", field)
		return n
	}
	if o.GetKind() != "Job" && status("observedGeneration") < o.GetGeneration() {
		return "its controller has not seen it", nil
	}
	switch o.GetKind() {
	case "Deployment":
		want, found, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
		if !found {
			want = 1
		}
		if updated, all, available := status("updatedReplicas"), status("replicas"),
			status("availableReplicas"); updated < want || all > updated || available < want {
			return fmt.Sprintf("%d of %d pods are new, %d available, %d old ones left", updated, want, available,
				all-updated), nil
		}
	case "DaemonSet":
		want := status("desiredNumberScheduled")
		if updated, available := status("updatedNumberScheduled"), status("numberAvailable"); updated < want ||
			available < want {
			return fmt.Sprintf("%d of %d pods are new, %d available", updated, want, available), nil
		}
	case "Job":
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		for _, c := range conditions {
			c, ok := c.(map[string]any)
			switch {
			case !ok || c["status"] != "True":
			case c["type"] == "Complete":
				return "", nil
			case c["type"] == "Failed":
				return "", fmt.Errorf("the Job %s/%s failed: %v; kubectl -n %s logs job/%s says why", o.GetNamespace(),
					o.GetName(),
					c["message"], o.GetNamespace(), o.GetName())
			}
		}
		return "it is not complete", nil
	}
	return "", nil
}

// Stuck returns why a pod does not run, such as an image that cannot be pulled; empty if its status gives no reason.
func Stuck(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" {
			return "pod " + pod.Name + ": " + c.Message
		}
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		switch w, last := c.State.Waiting, c.LastTerminationState.Terminated; {
		case w == nil || w.Reason == "ContainerCreating" || w.Reason == "PodInitializing":
		case last != nil:
			return fmt.Sprintf("pod %s: %s: %s ended with code %d: kubectl -n %s logs --previous %s", pod.Name, w.Reason,
				c.Name, last.ExitCode, pod.Namespace, pod.Name)
		case strings.Contains(w.Reason, "Image"): // ErrImagePull, ImagePullBackOff, ErrImageNeverPull, InvalidImageName
			return fmt.Sprintf("pod %s: %s: %s; let node %s pull %s, or give another --image", pod.Name, w.Reason,
				w.Message, pod.Spec.NodeName, c.Image)
		default:
			return fmt.Sprintf("pod %s: %s: %s", pod.Name, w.Reason, w.Message)
		}
	}
	return ""
}
