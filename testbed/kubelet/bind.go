//go:build linux

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// schedule binds a pod to a node, or says in its status why it cannot be.
func (k *Kubelet) schedule(ctx context.Context, pod *corev1.Pod) error {
	if pod.DeletionTimestamp != nil || len(pod.Spec.SchedulingGates) > 0 || pod.Spec.SchedulerName != corev1.DefaultSchedulerName {
		return nil
	}
	name, err := k.assume(pod)
	if err != nil {
		return errors.Join(err, k.tellUnschedulable(ctx, pod, err))
	}
	if name == "" {
		return nil
	}
	err = k.client.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: name},
	}, metav1.CreateOptions{})
	if err != nil {
		k.scheduling.Lock()
		delete(k.assumed, pod.UID)
		k.scheduling.Unlock()
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil // deleted, or bound: the watch will tell
		}
		return fmt.Errorf("bind to node %s: %w", name, err)
	}
	return nil
}

// assume chooses a node and counts the pod there until the watch shows it; "" if that was done before.
func (k *Kubelet) assume(pod *corev1.Pod) (string, error) {
	k.scheduling.Lock()
	defer k.scheduling.Unlock()
	if k.assumed[pod.UID] != nil {
		return "", nil
	}
	var candidates []candidate
	for _, name := range k.order {
		if node, err := k.nodes.Get(name); err == nil {
			candidates = append(candidates, candidate{node, k.machines[name].PodCIDR})
		}
	}
	listed, err := k.pods.List(labels.Everything())
	if err != nil {
		return "", err
	}
	placed := make([]*corev1.Pod, 0, len(listed)+len(k.assumed))
	for _, p := range listed {
		if k.assumed[p.UID] == nil {
			placed = append(placed, p)
		}
	}
	for _, p := range k.assumed {
		placed = append(placed, p)
	}
	name, err := choose(pod, candidates, placed)
	if err != nil {
		return "", err
	}
	bound := pod.DeepCopy()
	bound.Spec.NodeName = name
	k.assumed[pod.UID] = bound
	return name, nil
}

func (k *Kubelet) tellUnschedulable(ctx context.Context, pod *corev1.Pod, why error) error {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Message == why.Error() {
			return nil
		}
	}
	patch, err := statusPatch(pod.UID, &corev1.PodStatus{}, &corev1.PodStatus{Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		Message: why.Error(), LastTransitionTime: atSecond(time.Now()),
	}}})
	if err != nil {
		return err
	}
	k.events.Event(pod, corev1.EventTypeWarning, "FailedScheduling", why.Error())
	_, err = k.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
