//go:build linux

package kubelet

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodStatus(t *testing.T) {
	now := time.Unix(2000, 0)
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	exited := func(code int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}
	}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reasonCreating}}
	one := func(c containerObservation) []containerObservation { c.name = "c"; return []containerObservation{c} }
	const always, onFailure, never = corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever
	for _, tc := range []struct {
		name   string
		policy corev1.RestartPolicy
		o      observation
		phase  corev1.PodPhase
		ready  corev1.ConditionStatus
		init   corev1.ConditionStatus
		reason string // of Ready
	}{
		{"starting", always, observation{initialized: true, containers: one(containerObservation{state: waiting})},
			corev1.PodPending, "False", "True", "ContainersNotReady"},
		{"initializing", always, observation{inits: one(containerObservation{state: running}), containers: one(containerObservation{state: waiting})},
			corev1.PodPending, "False", "False", "ContainersNotReady"},
		{"init failed, retried", always, observation{inits: one(containerObservation{state: waiting, last: exited(1)}),
			containers: one(containerObservation{state: waiting})}, corev1.PodPending, "False", "False", "ContainersNotReady"},
		{"init failed for good", never, observation{inits: one(containerObservation{state: exited(1)}),
			containers: one(containerObservation{state: waiting})}, corev1.PodFailed, "False", "False", "PodFailed"},
		{"running, not ready", always, observation{initialized: true, containers: one(containerObservation{state: running})},
			corev1.PodRunning, "False", "True", "ContainersNotReady"},
		{"ready", always, observation{initialized: true, containers: one(containerObservation{state: running, ready: true})},
			corev1.PodRunning, "True", "True", ""},
		{"crash loop", always, observation{initialized: true, containers: one(containerObservation{state: waiting, last: exited(1)})},
			corev1.PodRunning, "False", "True", "ContainersNotReady"},
		{"done", onFailure, observation{initialized: true, containers: one(containerObservation{state: exited(0)})},
			corev1.PodSucceeded, "False", "True", "PodCompleted"},
		{"failed, retried", onFailure, observation{initialized: true, containers: one(containerObservation{state: waiting, last: exited(1)})},
			corev1.PodRunning, "False", "True", "ContainersNotReady"},
		{"failed", never, observation{initialized: true, containers: one(containerObservation{state: exited(1)})},
			corev1.PodFailed, "False", "True", "PodFailed"},
		{"one of two done", never, observation{initialized: true, containers: append(
			one(containerObservation{state: exited(0)}), containerObservation{state: running, ready: true})},
			corev1.PodRunning, "False", "True", "ContainersNotReady"},
		{"deleted, all exited 0", always, observation{initialized: true, ended: true, containers: one(containerObservation{state: exited(0)})},
			corev1.PodSucceeded, "False", "True", "PodCompleted"},
		{"deleted, killed", always, observation{initialized: true, ended: true, containers: one(containerObservation{state: exited(137)})},
			corev1.PodFailed, "False", "True", "PodFailed"},
		{"deleted before it ran", always, observation{ended: true, containers: one(containerObservation{state: waiting})},
			corev1.PodFailed, "False", "False", "PodFailed"},
		{"rejected", always, observation{reason: "No", containers: one(containerObservation{state: waiting})},
			corev1.PodFailed, "False", "False", "PodFailed"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Generation: 3}, Spec: corev1.PodSpec{RestartPolicy: tc.policy}}
		tc.o.accepted = now
		s := podStatus(pod, &corev1.PodStatus{}, tc.o, now)
		got := map[corev1.PodConditionType]corev1.PodCondition{}
		for _, c := range s.Conditions {
			got[c.Type] = c
		}
		if s.Phase != tc.phase || got[corev1.PodReady].Status != tc.ready || got[corev1.ContainersReady].Status != tc.ready ||
			got[corev1.PodInitialized].Status != tc.init || got[corev1.PodReady].Reason != tc.reason ||
			got[corev1.PodScheduled].Status != corev1.ConditionTrue {
			t.Errorf("%s: phase %s, conditions %+v", tc.name, s.Phase, s.Conditions)
		}
	}
}

func TestPodStatusKeeps(t *testing.T) {
	then, now := time.Unix(1000, 0), time.Unix(2000, 0)
	pod := &corev1.Pod{Spec: corev1.PodSpec{ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}}}}
	running := observation{
		accepted: then, initialized: true,
		place:      placement{hostIP: netip.MustParseAddr("172.18.1.11"), podIP: netip.MustParseAddr("10.1.1.2")},
		containers: []containerObservation{{name: "c", ready: true, started: true, restarts: 2, state: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
	}
	foreign := corev1.PodCondition{Type: "example.com/other", Status: corev1.ConditionTrue, LastTransitionTime: atSecond(then)}
	first := podStatus(pod, &corev1.PodStatus{Conditions: []corev1.PodCondition{foreign}}, running, then)
	again := podStatus(pod, &first, running, now)
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("a status changed with time alone:\n%s", diff)
	}
	condition := func(s corev1.PodStatus, kind corev1.PodConditionType) corev1.PodCondition {
		for _, c := range s.Conditions {
			if c.Type == kind {
				return c
			}
		}
		return corev1.PodCondition{}
	}
	if got := condition(first, "example.com/other"); got != foreign {
		t.Errorf("condition of others: %+v", got)
	}
	if got := condition(first, corev1.PodReady); got.Reason != "ReadinessGatesNotReady" || !strings.Contains(got.Message, "example.com/gate") {
		t.Errorf("ready without its gate: %+v", got)
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: "example.com/gate", Status: corev1.ConditionTrue}}
	open := podStatus(pod, &first, running, now)
	if got := condition(open, corev1.PodReady); got.Status != corev1.ConditionTrue || !got.LastTransitionTime.Time.Equal(now) {
		t.Errorf("ready with its gate: %+v", got)
	}
	if got := condition(open, corev1.ContainersReady); !got.LastTransitionTime.Time.Equal(then) {
		t.Errorf("transition time of an unchanged condition: %+v", got)
	}
	if open.PodIP != "10.1.1.2" || open.HostIPs[0].IP != "172.18.1.11" || open.ContainerStatuses[0].RestartCount != 2 {
		t.Errorf("status %+v", open)
	}
	patch, err := statusPatch("u1", &first, &open)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"uid":"u1"`, `"type":"Ready"`} {
		if !strings.Contains(string(patch), want) {
			t.Errorf("patch lacks %s: %s", want, patch)
		}
	}
	for _, no := range []string{"containerStatuses", "podIP", `"type":"Initialized","`} {
		if strings.Contains(string(patch), no) {
			t.Errorf("patch has %s, which did not change: %s", no, patch)
		}
	}
}

func TestProbeOutcome(t *testing.T) {
	// Attempts: '+' success, '-' failure on its period, '.' failure between. Changes: 'R'eady, 'U'nready, ' ' none.
	for _, tc := range []struct {
		successes, failures int
		attempts, changes   string
	}{
		{1, 3, "+++", "R  "},
		{1, 3, "---", "  U"},
		{1, 3, "-..-..-..-", "      U   "},
		{1, 3, "--+---", "  R  U"},
		{1, 1, "-+-+", "URUR"},
		{3, 1, "++-+++", "  U  R"},
		{2, 3, "+.+.++", "     R"},
		{1, 3, "+--+--+", "R      "},
	} {
		o := probeOutcome{successes: tc.successes, failures: tc.failures}
		got := ""
		for _, a := range tc.attempts {
			change := " "
			if o.add(a == '+', a != '.') {
				change = map[bool]string{true: "R", false: "U"}[o.ok]
			}
			got += change
		}
		if got != tc.changes {
			t.Errorf("%d/%d %q: changes %q, want %q", tc.successes, tc.failures, tc.attempts, got, tc.changes)
		}
	}
}

func TestRestartBackoff(t *testing.T) {
	var got []time.Duration
	for n := 1; n <= 6; n++ {
		got = append(got, restartBackoff(n))
	}
	s := time.Second
	if diff := cmp.Diff([]time.Duration{s, 2 * s, 4 * s, 8 * s, 10 * s, 10 * s}, got); diff != "" {
		t.Error(diff)
	}
	if restartBackoff(1000) != 10*s {
		t.Error("backoff overflows")
	}
}
