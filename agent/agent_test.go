package agent

import (
	"context"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/kerneltest"
)

// idle returns an agent that is not running.
func idle(t *testing.T) *agent {
	n := &kerneltest.Node{}
	return newAgent(&config.Agent{Cluster: "c1", WGKeyPath: t.TempDir()}, n, n.Guard())
}

func receive(t *testing.T, a *agent, all ...*semaphorev1.AttachResponse) {
	t.Helper()
	for _, m := range all {
		must(t, a.Receive(context.Background(), m))
	}
}

func attached(epoch string, resumed bool) *semaphorev1.AttachResponse {
	return &semaphorev1.AttachResponse{
		Message: &semaphorev1.AttachResponse_Attached{Attached: &semaphorev1.Attached{Node: "n1", Epoch: epoch,
			Resumed: resumed}},
	}
}

func synced(revision uint64) *semaphorev1.AttachResponse {
	return &semaphorev1.AttachResponse{
		Message: &semaphorev1.AttachResponse_Synced{Synced: &semaphorev1.Synced{Revision: revision}},
	}
}

// TestAppliedIsSentOnlyToTheStreamsBroker: a revision is sent only to the broker that it came from, and only after that
// broker has sent everything up to it.
func TestAppliedIsSentOnlyToTheStreamsBroker(t *testing.T) {
	a := idle(t)
	var sent uint64 // the last revision that it applied on this stream; 0 for none
	a.send = func(m *semaphorev1.AttachRequest) {
		if m.GetApplied() != nil {
			sent = m.GetApplied().GetRevision()
		}
	}
	begin := func() { sent = 0; a.Begin() }
	round := func() { a.round(t.Context(), false) }
	begin()
	receive(t, a, attached("A", false))
	round()
	if sent != 0 || a.ready() == nil {
		t.Errorf("before the end mark: sent %d, ready: %v", sent, a.ready())
	}
	receive(t, a, synced(1000))
	round()
	if sent != 1000 || a.ready() != nil {
		t.Errorf("after the end mark: sent %d, ready: %v", sent, a.ready())
	}
	late, _, _ := a.take(false) // a round that begins on this stream, and ends on another one
	a.Ended(context.Canceled)
	begin()
	receive(t, a, attached("B", false))
	a.report(late.Position)
	round()
	if sent != 0 {
		t.Errorf("epoch B is sent %d, of epoch A", sent)
	}
	receive(t, a, synced(3))
	a.report(late.Position)
	if sent != 0 {
		t.Errorf("epoch B is sent %d by a round of epoch A", sent)
	}
	round()
	if sent != 3 {
		t.Errorf("sent %d; want 3", sent)
	}
	a.Ended(context.Canceled)
	if a.ready() != nil {
		t.Errorf("not ready without a broker: %v", a.ready())
	}
	begin()
	receive(t, a, attached("B", true))
	round()
	if sent != 3 {
		t.Errorf("a stream that resumes is sent %d; want 3", sent)
	}
}
