//go:build linux

package kubelet

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// observation is what the kubelet knows of a pod that runs on one of its nodes.
type observation struct {
	place placement
	// accepted is when the pod was first seen on its node.
	accepted time.Time
	// initialized tells that all init containers have succeeded.
	initialized bool
	inits       []containerObservation
	containers  []containerObservation
	// ended tells that the pod was deleted and its last process is gone: its phase can only be a final one.
	ended bool
	// reason and message are the pod's own, of a pod that cannot run at all.
	reason, message string
}

// containerObservation is what the kubelet knows of a container.
type containerObservation struct {
	name, image, id string
	state, last     corev1.ContainerState
	started, ready  bool
	restarts        int32
}

// podStatus is the status a pod has by an observation, as a kubelet computes it. Conditions that do not change keep their
// transition time, and conditions of others stay. The pod's own status is the one written before.
func podStatus(pod *corev1.Pod, before *corev1.PodStatus, o observation, now time.Time) corev1.PodStatus {
	accepted := atSecond(o.accepted)
	s := corev1.PodStatus{
		ObservedGeneration:    pod.Generation,
		Phase:                 phase(pod, o),
		Reason:                o.reason,
		Message:               o.message,
		StartTime:             &accepted,
		QOSClass:              before.QOSClass,
		NominatedNodeName:     before.NominatedNodeName,
		InitContainerStatuses: containerStatuses(o.inits),
		ContainerStatuses:     containerStatuses(o.containers),
	}
	if before.StartTime != nil {
		s.StartTime = before.StartTime
	}
	if o.place.hostIP.IsValid() {
		s.HostIP = o.place.hostIP.String()
		s.HostIPs = []corev1.HostIP{{IP: s.HostIP}}
	}
	if o.place.podIP.IsValid() {
		s.PodIP = o.place.podIP.String()
		s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	}
	s.Conditions = conditions(pod, before, o, s.Phase, now)
	return s
}

// phase follows "Pod phase" of the Kubernetes documentation.
func phase(pod *corev1.Pod, o observation) corev1.PodPhase {
	if o.reason != "" {
		return corev1.PodFailed
	}
	running, waiting, stopped, succeeded := 0, 0, 0, 0
	for _, c := range o.containers {
		switch {
		case c.state.Running != nil:
			running++
		case c.state.Terminated != nil:
			stopped++
			if c.state.Terminated.ExitCode == 0 {
				succeeded++
			}
		case c.last.Terminated != nil: // between two runs
			stopped++
			if c.last.Terminated.ExitCode == 0 {
				succeeded++
			}
		default:
			waiting++
		}
	}
	never := pod.Spec.RestartPolicy == corev1.RestartPolicyNever
	if o.ended {
		if waiting == 0 && stopped > 0 && stopped == succeeded {
			return corev1.PodSucceeded
		}
		return corev1.PodFailed
	}
	if !o.initialized {
		failed := func(c containerObservation) bool {
			return c.state.Terminated != nil && c.state.Terminated.ExitCode != 0
		}
		if never && slices.ContainsFunc(o.inits, failed) {
			return corev1.PodFailed
		}
		return corev1.PodPending
	}
	switch {
	case waiting > 0:
		return corev1.PodPending
	case running > 0 || pod.Spec.RestartPolicy == corev1.RestartPolicyAlways || pod.Spec.RestartPolicy == "":
		return corev1.PodRunning
	case stopped == succeeded:
		return corev1.PodSucceeded
	case never:
		return corev1.PodFailed
	}
	return corev1.PodRunning
}

func containerStatuses(observed []containerObservation) []corev1.ContainerStatus {
	var list []corev1.ContainerStatus
	for _, c := range observed {
		started := c.started
		list = append(list, corev1.ContainerStatus{
			Name: c.name, Image: c.image, ImageID: c.image, ContainerID: c.id,
			State: c.state, LastTerminationState: c.last,
			Started: &started, Ready: c.ready, RestartCount: c.restarts,
		})
	}
	return list
}

func conditions(pod *corev1.Pod, before *corev1.PodStatus, o observation, p corev1.PodPhase, now time.Time) []corev1.PodCondition {
	var unready []string
	for _, c := range o.containers {
		if !c.ready {
			unready = append(unready, c.name)
		}
	}
	initialized := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	if !o.initialized {
		initialized.Status, initialized.Reason = corev1.ConditionFalse, "ContainersNotInitialized"
	}
	containersReady := corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}
	final := p == corev1.PodSucceeded || p == corev1.PodFailed
	switch {
	case final && p == corev1.PodSucceeded:
		containersReady.Status, containersReady.Reason = corev1.ConditionFalse, "PodCompleted"
		initialized.Reason = "PodCompleted"
	case final:
		containersReady.Status, containersReady.Reason = corev1.ConditionFalse, "PodFailed"
	case len(unready) > 0:
		containersReady.Status, containersReady.Reason = corev1.ConditionFalse, "ContainersNotReady"
		containersReady.Message = fmt.Sprintf("containers with unready status: [%s]", strings.Join(unready, " "))
	}
	ready := containersReady
	ready.Type = corev1.PodReady
	if ready.Status == corev1.ConditionTrue {
		if missing := missingGates(pod); len(missing) > 0 {
			ready.Status, ready.Reason = corev1.ConditionFalse, "ReadinessGatesNotReady"
			ready.Message = fmt.Sprintf("readiness gates without condition True: [%s]", strings.Join(missing, " "))
		}
	}
	own := []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, initialized, containersReady, ready,
	}
	list := slices.DeleteFunc(slices.Clone(before.Conditions), func(c corev1.PodCondition) bool {
		return slices.ContainsFunc(own, func(o corev1.PodCondition) bool { return o.Type == c.Type })
	})
	for _, c := range own {
		c.ObservedGeneration = pod.Generation
		c.LastTransitionTime = atSecond(now)
		for _, old := range before.Conditions {
			if old.Type == c.Type && old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
		}
		list = append(list, c)
	}
	slices.SortStableFunc(list, func(a, b corev1.PodCondition) int { return strings.Compare(string(a.Type), string(b.Type)) })
	return list
}

// missingGates are the pod's readiness gates that nobody has set to True.
func missingGates(pod *corev1.Pod) []string {
	var missing []string
	for _, g := range pod.Spec.ReadinessGates {
		isTrue := func(c corev1.PodCondition) bool {
			return c.Type == g.ConditionType && c.Status == corev1.ConditionTrue
		}
		if !slices.ContainsFunc(pod.Status.Conditions, isTrue) {
			missing = append(missing, string(g.ConditionType))
		}
	}
	return missing
}

// statusPatch is the strategic merge patch from one status to another, guarded by the pod's UID. It leaves conditions of
// others alone.
func statusPatch(uid types.UID, from, to *corev1.PodStatus) ([]byte, error) {
	old, err := json.Marshal(corev1.Pod{Status: *from})
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	updated, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}, Status: *to})
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(old, updated, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("make status patch: %w", err)
	}
	return patch, nil
}

// atSecond is a time as the API keeps it, so that it compares equal to what is read back.
func atSecond(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }
