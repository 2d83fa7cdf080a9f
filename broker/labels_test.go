package broker

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// labelled is a Service with labels, in the order of their keys.
func labelled(o *semaphorev1.Object, pairs ...string) *semaphorev1.Object {
	for i := 0; i < len(pairs); i += 2 {
		o.GetService().Labels = append(o.GetService().Labels, &semaphorev1.Label{Key: pairs[i], Value: pairs[i+1]})
	}
	return o
}

// foreignLabels are those of a mirror that are not by what it is known.
func foreignLabels(s *corev1.Service) string {
	var all []string
	for key, value := range s.Labels {
		if !slices.Contains([]string{"app.kubernetes.io/managed-by", "semaphore.uw.io/source-cluster", "mirrored-svc", "mirror-svc-prefix-sync"}, key) {
			all = append(all, key+"="+value)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// A mirror has those labels of its source that the broker's own list takes, as they are there now; what somebody here adds stays, and
// what a remote must not set is not set.
func TestLabelsOfASource(t *testing.T) {
	w := newWorld(t)
	noLeaks(t)
	w.cfg.Services.Labels = append(w.cfg.Services.Labels, "team")
	stop := w.start(w.cfg)
	defer stop()
	e := w.exporter("c2")
	const mirror = "c2-shop-73736d-echo"
	become := func(what, want string) {
		t.Helper()
		within(t, time.Second, what, func() (bool, string) {
			s, err := w.admin.CoreV1().Services("semaphore").Get(t.Context(), mirror, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			got := foreignLabels(s)
			return got == want && s.Labels["app.kubernetes.io/managed-by"] == "semaphore-broker" && s.Labels["semaphore.uw.io/source-cluster"] == "c2", got
		})
	}
	sendAs(e, "c2", "e1", labelled(serviceObject("shop", "echo", 80), "app.kubernetes.io/managed-by", "Helm", "app.kubernetes.io/name", "echo",
		"example.org/cost", "9", "semaphore.uw.io/source-cluster", "c3", "service.kubernetes.io/service-proxy-name", "none", "team", "shop"))
	become("labels of the list", "app.kubernetes.io/name=echo team=shop")

	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{"argo": "mine", "team": "mine"}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.admin.CoreV1().Services("semaphore").Patch(t.Context(), mirror, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	become("a label that somebody adds stays, and one of the source's is put right", "app.kubernetes.io/name=echo argo=mine team=shop")

	e.send(changesFrom(101, labelled(serviceObject("shop", "echo", 80), "app.kubernetes.io/version", "2")))
	become("other labels at the source", "app.kubernetes.io/version=2 argo=mine")
	e.send(changesFrom(102, serviceObject("shop", "echo", 80)))
	become("none at the source", "argo=mine")
	before := w.versions(t)
	stop()
	stop = w.start(w.cfg)
	sendAs(w.exporter("c2"), "c2", "e1", serviceObject("shop", "echo", 80))
	time.Sleep(time.Second)
	if after := w.versions(t); !slices.Equal(valuesOf(before), valuesOf(after)) {
		t.Errorf("a restart writes: %v, was %v", after, before)
	}
}

func valuesOf(m map[string]string) (all []string) {
	for key, value := range m {
		all = append(all, key+" "+value)
	}
	slices.Sort(all)
	return all
}
