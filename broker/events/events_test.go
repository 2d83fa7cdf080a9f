package events

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/internal/testkit"
	"github.com/kube-semaphore/semaphore/internal/testkit/kubetest"
)

// TestEventsOfOneRemote: a remote that gets everything wrong keeps no other one's Event from being written, and what
// found no room is written when it is asked for again.
func TestEventsOfOneRemote(t *testing.T) {
	e := New(nil, "mirrors", []string{"c2", "c3"}, prometheus.NewRegistry(),
		slog.New(slog.NewTextHandler(io.Discard, nil)))
	// More than wait at a time, and fewer than are remembered: of more, all would be forgotten.
	const flood = maxWritten / 2
	for i := range flood {
		e.Warn("c2", "Refused", fmt.Sprint("flood ", i))
	}
	e.Warn("c3", "HeldBack", "cluster c3 has withdrawn most")
	e.Warn("c9", "Refused", "of a cluster that is not configured")
	written, of := map[string]int{}, ""
	take := func() {
		for {
			p, cluster, _, ok := e.next(of)
			if !ok {
				return
			}
			of = cluster
			written[p.event.Note]++
			e.ended(p, true)
		}
	}
	take()
	if written["cluster c3 has withdrawn most"] != 1 || written["of a cluster that is not configured"] != 1 ||
		len(written) != eventsBurst+2 {
		t.Errorf("written are %v", written)
	}
	if n := len(e.budgets); n != 3 {
		t.Errorf("there are %d budgets", n)
	}
	// The last of the flood found no room. There is some now.
	e.budgets["c2"].limiter.SetLimit(1e9)
	time.Sleep(time.Millisecond)
	take()
	last := fmt.Sprint("flood ", flood-1)
	e.Warn("c2", "Refused", last)
	take()
	if written[last] != 1 {
		t.Error("what found no room counts as written")
	}
}

// TestEvents: each Event is written, once, however many come at once; the rest waits for the limiter. One that could
// not be written is written when it is asked for again.
func TestEvents(t *testing.T) {
	ctx, admin := t.Context(), kubernetes.NewForConfigOrDie(kubetest.Start(t))
	if _, err := admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "mirrors"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	running := func(namespace string, registry *prometheus.Registry) *Events {
		e := New(admin, namespace, []string{"c2", "c3"}, registry, slog.New(slog.DiscardHandler))
		if e.perSecond != eventsPerSecond || e.burst != eventsBurst {
			t.Errorf("%v events a second, %d at once", e.perSecond, e.burst)
		}
		e.perSecond = 50
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = e.Run(ctx) // until the test ends
		}()
		t.Cleanup(func() { cancel(); <-done })
		return e
	}
	e := running("mirrors", registry)
	e.Warn("c2", "Refused", "service shop/echo of cluster c2: something")
	e.Warn("c2", "Refused", "service shop/echo of cluster c2: something")
	e.Warn("c2", "Refused", "service shop/other of cluster c2: "+strings.Repeat("ä", 2000))
	for i := range 100 {
		e.Warn("c2", "Refused", fmt.Sprint("flood ", i))
	}
	e.WarnOf("c2", "quota", "WriteFailed", "create of service a: quota")
	e.WarnOf("c2", "quota", "WriteFailed", "create of service b: quota")
	notes := func() map[string]int {
		list, err := admin.EventsV1().Events("mirrors").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]int{}
		for _, e := range list.Items {
			if e.Regarding.Kind == "Namespace" && e.Regarding.Name == "mirrors" {
				all[e.Note]++
			}
		}
		return all
	}
	testkit.Eventually(t, 3*time.Minute, "all are written", testkit.State(func() (bool, string) {
		n := len(notes())
		return n >= 103, fmt.Sprint(n)
	}))
	all := notes()
	for i := range 100 {
		if n := all[fmt.Sprint("flood ", i)]; n != 1 {
			t.Errorf("flood %d: %d times", i, n)
		}
	}
	if all["service shop/echo of cluster c2: something"] != 1 || all["create of service a: quota"] != 1 ||
		all["create of service b: quota"] != 0 {
		t.Errorf("events %v", all)
	}
	if n, _ := testkit.Metric(t, registry, "semaphore_broker_events_total", "suppressed"); n != 2 {
		t.Errorf("%v suppressed, want the two that say the same", n)
	}

	failures := prometheus.NewRegistry()
	late := running("late", failures)
	late.Warn("c2", "Refused", "there is no namespace yet")
	testkit.Eventually(t, 3*time.Minute, "refused", testkit.State(func() (bool, string) {
		n, _ := testkit.Metric(t, failures, "semaphore_broker_events_total", "failed")
		return n == 1, fmt.Sprint(n)
	}))
	if _, err := admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "late"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 3*time.Minute, "written when it is asked for again", testkit.State(func() (bool, string) {
		late.Warn("c2", "Refused", "there is no namespace yet")
		list, err := admin.EventsV1().Events("late").List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 1, fmt.Sprint(err)
	}))
}
