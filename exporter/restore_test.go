package exporter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/trust"
)

// TestRestoredEtcd restores the etcd of c1 to an earlier state, so that resourceVersions go backwards under a running
// exporter, whose watches would be silent from then on. The exporter exits with the reason. The next one sends the
// broker nothing until the operator has confirmed the state. The broker, which is not restarted, keeps everything until
// then.
func TestRestoredEtcd(t *testing.T) {
	api, store := kubetest.StartRestorable(t)
	admin := kubernetes.NewForConfigOrDie(api)
	populate(t, admin)
	trust := trust.New(t, "c1", "c2")
	c2 := newBroker(t, trust, "c2")
	pods := func() string {
		var out []string
		for _, key := range strings.Split(c2.holds(), ", ") {
			if pod, ok := strings.CutPrefix(key, "setmember shop/"); ok {
				out = append(out, pod)
			}
		}
		return strings.Join(out, " ")
	}
	e := start(t, api, trust, c2.address)
	within(t, "the broker holds the pod", func() bool { return pods() == "web" })
	restore := store.BackUp(t)
	newSetMember(t, admin, "later", "10.1.1.8")
	within(t, "the broker holds the pod that came later", func() bool { return pods() == "later web" })
	var last uint64
	for range 100 {
		pod, err := admin.CoreV1().Pods("shop").Patch(t.Context(), "later", types.MergePatchType,
			[]byte(fmt.Sprintf(`{"status":{"message":"%d"}}`, last)), metav1.PatchOptions{}, "status")
		must(t, err)
		last = revisionOf(t, pod)
	}
	// The broker learns how far the exporter has read with a change, or by the next heartbeat within 5 s.
	newSetMember(t, admin, "newest", "10.1.1.11")
	within(t, "the broker holds the newest pod", func() bool { return pods() == "later newest web" })
	everything := c2.holds()

	restore()
	began := time.Now()
	now := revisionOf(t, newSetMember(t, admin, "after", "10.1.1.9"))
	if now >= last {
		t.Fatalf("resourceVersions are at %d, and were at %d: they did not go back", now, last)
	}
	select {
	case err := <-e.done:
		t.Logf("resourceVersions went back from %d to %d; after %s the exporter ended: %v", last, now,
			time.Since(began).Round(time.Second), err)
		if !errors.Is(err, kube.ErrPutBack) || !strings.Contains(err.Error(), "raise") {
			t.Errorf("the exporter ended with %v", err)
		}
	case <-time.After(3 * time.Minute):
		t.Fatalf("three minutes after the restore the exporter still runs, and its problems are %q", e.status().GetProblems())
	}
	e.done <- context.Canceled // for stop

	// Restart it like the kubelet.
	e.stop()
	e = start(t, api, trust, c2.address)
	within(t, "the status says what to do", func() bool {
		problems := strings.Join(e.status().GetProblems(), "\n")
		return strings.Contains(problems, "setmember has been read up to") &&
			strings.Contains(problems, "raise restores in the exporter's configuration")
	})
	time.Sleep(2 * time.Second)
	if is := c2.holds(); is != everything {
		t.Errorf("before the operator has said so, the broker holds %q, not %q", is, everything)
	}
	e.stop()

	e = start(t, api, trust, c2.address, "restores: 1")
	within(t, "the broker holds what there is now", func() bool { return pods() == "after web" })
	within(t, "there is no problem left", func() bool { return len(e.status().GetProblems()) == 0 })
	newSetMember(t, admin, "last", "10.1.1.10")
	within(t, "what happens is sent again", func() bool { return pods() == "after last web" })
}

// newSetMember creates a pod of shop with an address in a set.
func newSetMember(t *testing.T, admin kubernetes.Interface, name, ip string) *corev1.Pod {
	t.Helper()
	pods := admin.CoreV1().Pods("shop")
	kubetest.Create(t, pods, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{naming.DefaultLabelDomain + "/name": "front"}},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "main", Image: "image"}}},
	})
	pod, err := pods.Patch(t.Context(), name, types.MergePatchType,
		[]byte(fmt.Sprintf(`{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%q}]}}`, ip, ip)),
		metav1.PatchOptions{}, "status")
	must(t, err)
	return pod
}
