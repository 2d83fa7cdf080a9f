package federation

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// TestReadersOfABusyLink: while a link handles a message, which may take long, metrics and findings are what they were
// before.
func TestReadersOfABusyLink(t *testing.T) {
	registry := prometheus.NewRegistry()
	s := begun(Options{LabelDomains: []string{"ours.example"}, Metrics: NewMetrics(registry)}, onlyC2, nil, Engines{})
	l := s.all()["c2"]
	l.current = &stream{session: l.replica.Open()}
	l.current.outcomes.omitted = 7
	hello := players.Hello("c2", "e", 0, semaphorev1.Kind_KIND_NODE)
	hello.GetHello().LabelDomains = []string{"theirs.example"}
	testkit.Value(l.current.session.Receive(time.Now(), hello))(t)
	read := func() string {
		omitted, _ := testkit.Metric(t, registry, "semaphore_broker_outcomes_omitted", "c2")
		connected, _ := testkit.Metric(t, registry, "semaphore_broker_connected", "c2")
		return fmt.Sprintf("%g, %g, %s", omitted, connected, strings.Join(finding.Texts(s.Findings()), "\n"))
	}
	was := read()
	for _, part := range []string{"7, 1, ", "theirs.example", "the report to cluster c2 is full"} {
		if !strings.Contains(was, part) {
			t.Errorf("%q lacks %q", was, part)
		}
	}
	l.mu.Lock()
	handled := time.AfterFunc(30*time.Second, l.mu.Unlock)
	if is := read(); is != was {
		t.Errorf("it is %q, and was %q", is, was)
	}
	if !handled.Stop() {
		t.Fatal("metrics or findings wait until the link has handled the message")
	}
	l.mu.Unlock()
}
