package report

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestEventsOfOneRemote: a remote that gets everything wrong keeps no other one's Event from being written. A problem
// without room is not accepted, and when there is room, that is reported once.
func TestEventsOfOneRemote(t *testing.T) {
	e := NewEvents(nil, "mirrors", []string{"c2", "c3"}, prometheus.NewRegistry(),
		slog.New(slog.NewTextHandler(io.Discard, nil)))
	// More than wait at a time, and fewer than are remembered: of more, all would be forgotten.
	const flood = maxWritten / 2
	for i := range flood {
		if accepted := e.Warn("c2", "Refused", fmt.Sprint("flood ", i)); accepted != (i < maxWaiting) {
			t.Fatalf("the %dth Event is accepted: %t", i+1, accepted)
		}
	}
	e.Warn("c3", "Retained", "cluster c3 has withdrawn most")
	e.Warn("c9", "Refused", "of a cluster that is not configured")
	written, room := map[string]int{}, []int{}
	take := func() {
		for {
			p, _, ok := e.next()
			if !ok {
				return
			}
			written[p.event.Note]++
			if e.ended(p, nil) {
				room = append(room, len(e.budgets["c2"].waiting))
			}
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
	if fmt.Sprint(room) != fmt.Sprint([]int{maxWaiting / 2}) {
		t.Errorf("there is room with %v waiting", room)
	}
	last := fmt.Sprint("flood ", flood-1)
	for _, when := range []string{"with room", "while it waits"} {
		if !e.Warn("c2", "Refused", last) {
			t.Errorf("%s, an Event is not accepted", when)
		}
	}
	take()
	if written[last] != 1 {
		t.Error("what found no room counts as written")
	}
}

// TestEventsThatFail: an Event that could not be written waits behind the others of its remote, and is written later.
// Meanwhile one of them is tried each ten seconds. One that the apiserver refuses for what it is, is given up.
func TestEventsThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewEvents(nil, "mirrors", []string{"c2", "c3"}, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
		resource := schema.GroupResource{Group: "events.k8s.io", Resource: "events"}
		down, invalid := errors.New("connection refused"), apierrors.NewInvalid(schema.GroupKind{}, "", nil)
		forbidden := apierrors.NewForbidden(resource, "", errors.New("the namespace is being terminated"))
		for _, note := range []string{"a", "b", "c"} {
			e.Warn("c2", "Refused", note)
		}
		take := func(cluster string, err error) string {
			t.Helper()
			p, wait, ok := e.next()
			if !ok {
				return wait.String()
			}
			if p.cluster != cluster {
				t.Errorf("an Event of %s, not of %s", p.cluster, cluster)
			}
			e.ended(p, err)
			return p.event.Note
		}
		expect := func(got, want string) {
			t.Helper()
			if got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
		expect(take("c2", down), "a")
		expect(take("c2", nil), retryAfter.String())
		e.Warn("c3", "Refused", "of another")
		expect(take("c3", nil), "of another")
		if !e.Warn("c2", "Refused", "a") {
			t.Error("one that waits is not accepted when it is asked for again")
		}
		time.Sleep(retryAfter)
		expect(take("c2", forbidden), "b")
		time.Sleep(retryAfter)
		expect(take("c2", invalid), "c")
		expect(take("c2", nil), "a")
		expect(take("c2", nil), "b")
		expect(take("c2", nil), "0s")
	})
}

// TestEventTypes: the type of an Event follows the level of its reason, and endpoints that a Service shares with other
// clusters by choice are no warning.
func TestEventTypes(t *testing.T) {
	e := NewEvents(nil, "mirrors", []string{"c2"}, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	e.Warn("c2", finding.Refused, "a")
	e.Warn("c2", finding.ClusterBack, "b")
	for _, use := range []string{naming.OwnNameFailover, naming.OwnNameAll} {
		e.OwnName(choice.Lent{Namespace: "shop", Name: "echo",
			OwnName: choice.OwnName{Use: use, Clusters: []string{"c2"}}})
	}
	e.OwnName(choice.Lent{Namespace: "shop", Name: "echo", Before: []string{"c2"}})
	e.OwnName(choice.Lent{Namespace: "shop", Name: "echo", Before: []string{"c2"},
		OwnName: choice.OwnName{Use: naming.OwnNameFailover, Ready: 1, Suffices: true}})
	for ready := range 2 { // too few, and no other cluster has any
		e.OwnName(choice.Lent{Namespace: "shop", Name: "echo", Before: []string{"c2"},
			OwnName: choice.OwnName{Use: naming.OwnNameFailover, Ready: ready}})
	}
	var got []string
	for {
		p, _, ok := e.next()
		if !ok {
			break
		}
		got = append(got, p.event.Type+" "+p.event.Reason)
		e.ended(p, nil)
	}
	slices.Sort(got)
	want := []string{"Normal ClusterBack", "Normal ServedHere", "Normal ServedHere", "Normal ServedTogether",
		"Warning Refused", "Warning ServedElsewhere", "Warning ServedElsewhere", "Warning ServedElsewhere"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestEvents: each Event is written, once, however many come at once; the rest waits for the limiter. Run calls for
// those that were not accepted when there is room. One that could not be written is written when the apiserver accepts
// it, though nobody asks again.
func TestEvents(t *testing.T) {
	ctx, admin := t.Context(), kubernetes.NewForConfigOrDie(kubetest.Start(t))
	kubetest.Namespace(t, admin, "mirrors")
	registry := prometheus.NewRegistry()
	const flood = maxWaiting + 100
	warn := func(e *Events) {
		for i := range flood {
			e.Warn("c3", "Refused", fmt.Sprint("more ", i))
		}
	}
	running := func(namespace string, registry *prometheus.Registry) *Events {
		e := NewEvents(admin, namespace, []string{"c2", "c3"}, registry, slog.New(slog.DiscardHandler))
		if e.perSecond != eventsPerSecond || e.burst != eventsBurst {
			t.Errorf("%v events a second, %d at once", e.perSecond, e.burst)
		}
		e.perSecond = 50
		e.WhenRoom(func() { warn(e) })
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
		list := testkit.Value(admin.EventsV1().Events("mirrors").List(ctx, metav1.ListOptions{}))(t)
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

	warn(running("mirrors", prometheus.NewRegistry()))
	testkit.Eventually(t, 3*time.Minute, "those without room are written", testkit.State(func() (bool, string) {
		n := len(notes()) - len(all)
		return n == flood, fmt.Sprint(n)
	}))
	failures := prometheus.NewRegistry()
	late := running("late", failures)
	late.Warn("c2", "Refused", "there is no namespace yet")
	testkit.Eventually(t, 3*time.Minute, "refused", testkit.State(func() (bool, string) {
		n, _ := testkit.Metric(t, failures, "semaphore_broker_events_total", "failed")
		return n == 1, fmt.Sprint(n)
	}))
	kubetest.Namespace(t, admin, "late")
	testkit.Eventually(t, 3*time.Minute, "written when it can be", testkit.State(func() (bool, string) {
		list, err := admin.EventsV1().Events("late").List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 1, fmt.Sprint(err)
	}))
}
