package broker

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// An exporter receives the label domains of sets. For a cluster that selects its pods by other labels there is a line
// in the status and an Event.
func TestLabelDomains(t *testing.T) {
	w := newWorld(t)
	kubetest.NoLeaks(t, w.rest)
	w.cfg.LabelDomains = []string{"semaphore.uw.systems", "policy.semaphore.uw.io"}
	stop := w.start(w.cfg)
	defer stop()
	hello := func(e *players.Exporter, cluster string, domains ...string) {
		t.Helper()
		m := players.Hello(cluster, "e1", 1, semaphorev1.Kind_KIND_SET_MEMBER)
		m.GetHello().LabelDomains = domains
		if w := e.Greet(m); !slices.Equal(w.GetLabelDomains(),
			[]string{"semaphore.uw.systems", "policy.semaphore.uw.io"}) {
			t.Errorf("welcome %v", w)
		}
		e.Send(players.Snapshot(semaphorev1.Kind_KIND_SET_MEMBER, 1,
			players.Member("shop", "web", "u-"+cluster, "front",
				map[string]string{"c2": "10.2.1.6", "c3": "10.3.1.6"}[cluster]))...)
		e.Acked(1)
	}
	hello(w.exporter("c2"), "c2", "policy.semaphore.uw.io")
	hello(w.exporter("c3"), "c3", "policy.semaphore.uw.io", "semaphore.uw.systems")
	w.event(t, "LabelDomainsDiffer", "cluster c2 ")
	var lines []string
	for _, line := range w.status(w.cfg).GetProblems() {
		if strings.Contains(line, "finds the pods of sets by labels of") {
			lines = append(lines, line)
		}
	}
	if len(lines) != 1 || !strings.HasPrefix(lines[0], "cluster c2 ") {
		t.Errorf("of domains that differ the status says %q", lines)
	}
}

// The outcome of an accepted service reaches its exporter with the answer to a heartbeat, once, and so does its end.
func TestOutcomesReachTheExporter(t *testing.T) {
	w := newWorld(t)
	kubetest.NoLeaks(t, w.rest)
	stop := w.start(w.cfg)
	defer stop()
	foreign := kubetest.Create(t, w.admin.CoreV1().Services("semaphore"), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "c2-shop-73736d-taken"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	})
	long := strings.Repeat("x", 50)
	e := w.exporter("c2")
	e.SendAll("c2", "e1", players.Service("shop", "fine", 80), players.Service("shop", long, 80),
		players.Service("shop", "taken", 80))
	// beat returns the outcomes in the answer to a heartbeat.
	beat := func() (out []string) {
		t.Helper()
		e.Send(players.Beat(100, 100))
		for {
			m := e.Recv()
			if m.GetAck() != nil {
				return out
			}
			o := m.GetOutcome()
			out = append(out, o.GetKey().GetName()+" "+o.GetCode())
			for _, secret := range []string{"c1", "c3"} {
				if strings.Contains(o.GetReason(), secret) {
					t.Errorf("c2 receives %s: %s", secret, o.GetReason())
				}
			}
		}
	}
	var reported []string
	eventually(t, "both are sent", func() (bool, string) {
		reported = append(reported, beat()...)
		slices.Sort(reported)
		return slices.Equal(reported, []string{"taken WriteFailed", long + " NameTooLong"}), strings.Join(reported, ", ")
	})
	if again := beat(); len(again) > 0 {
		t.Errorf("sent again: %q", again)
	}
	testkit.Must(t, w.admin.CoreV1().Services("semaphore").Delete(t.Context(), foreign.Name,
		metav1.DeleteOptions{}))
	reported = nil
	eventually(t, "the end is sent", func() (bool, string) {
		reported = append(reported, beat()...)
		return slices.Contains(reported, "taken "), strings.Join(reported, ", ")
	})
	// A write to an overloaded apiserver may first fail for another reason, which is reported too.
	for _, one := range reported[:len(reported)-1] {
		if one != "taken WriteFailed" {
			t.Errorf("before the end %q is sent", one)
		}
	}
}
