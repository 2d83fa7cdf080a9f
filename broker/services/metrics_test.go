package services

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/broker/replica"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// problems are the values of semaphore_broker_service_problems that are not 0, by remote and reason, and how many
// values there are.
func (f *fixture) problems(t *testing.T) (text string, values int) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(f)
	families := testkit.Value(registry.Gather())(t)
	var lines []string
	for _, family := range families {
		if family.GetName() != "semaphore_broker_service_problems" {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if n := m.GetGauge().GetValue(); n > 0 {
				lines = append(lines, fmt.Sprint(labels["cluster"], " ", labels["reason"], " ", n))
			}
			values++
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, ", "), values
}

// Services whose names are too long, or clash, and global services that differ are counted by remote and reason; a
// reason without any is 0.
func TestServiceProblemsAreCounted(t *testing.T) {
	f := newFixture(t, 0)
	long := strings.Repeat("n", 50)
	mirror := web(&semaphorev1.Service{Mirror: true})
	for cluster, changes := range map[string][]replica.Change{
		"c2": {svc("shop", long, mirror), svc("shop", long+"-too", mirror), svc("shop", "a-73736d-b", mirror),
			svc("shop-73736d-a", "b", mirror), svc("shop", "web", global())},
		"c3": {svc("shop", long, mirror),
			svc("shop", "web", web(&semaphorev1.Service{Global: true, PublishNotReadyAddresses: true}))},
	} {
		f.take(cluster, replica.Result{Changes: changes, Completed: kindService})
		f.take(cluster, replica.Result{Completed: kindSlice})
	}
	text, values := f.problems(t)
	if want := "c2 NameTaken 1, c2 NameTooLong 2, c3 NameTooLong 1, c3 SettingsDiffer 1"; text != want {
		t.Errorf("the metric has %q, want %q", text, want)
	}
	if want := 2 * 7; values != want { // two remotes, seven reasons
		t.Errorf("%d values, want %d", values, want)
	}
	// One that is not offered any more is not counted.
	f.take("c2", replica.Result{Changes: []replica.Change{svc("shop", long, nil)}})
	if text, _ := f.problems(t); text != "c2 NameTaken 1, c2 NameTooLong 1, c3 NameTooLong 1, c3 SettingsDiffer 1" {
		t.Errorf("afterwards the metric has %q", text)
	}
}
