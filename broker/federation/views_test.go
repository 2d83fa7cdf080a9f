package federation

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestReadersOfABusyLink: while a link handles a message, which may take long, metrics and findings are what they were
// before.
func TestReadersOfABusyLink(t *testing.T) {
	registry := prometheus.NewRegistry()
	s := New(Options{
		Cluster: "c1", Remotes: []config.Remote{{Name: "c2"}}, Sink: taker{}, LabelDomains: []string{"ours.example"},
		Metrics: NewMetrics(registry), Recorder: debug.NewRecorder("broker", "c1", ""),
		Log: slog.New(slog.DiscardHandler),
	})
	l := s.all()["c2"]
	l.current = &stream{session: l.replica.Open()}
	l.current.outcomes.omitted = 7
	_, err := l.current.session.Receive(time.Now(), &semaphorev1.PublishRequest{
		Message: &semaphorev1.PublishRequest_Hello{Hello: &semaphorev1.Hello{
			Cluster: "c2", ProtocolVersion: 1, MinProtocolVersion: 1, Epoch: "e", LabelDomains: []string{"theirs.example"},
			Kinds: []semaphorev1.Kind{semaphorev1.Kind_KIND_NODE},
		}}})
	testkit.Must(t, err)
	read := func() string {
		omitted, _ := testkit.Metric(t, registry, "semaphore_broker_outcomes_omitted", "c2")
		connected, _ := testkit.Metric(t, registry, "semaphore_broker_connected", "c2")
		return fmt.Sprintf("%g, %g, %s", omitted, connected, strings.Join(finding.Texts(s.Findings()), "\n"))
	}
	was := read()
	for _, part := range []string{"7, 1, ", "theirs.example", "receives what became of"} {
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
