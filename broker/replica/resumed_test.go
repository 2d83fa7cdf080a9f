package replica

import (
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// An exporter that comes back when nothing has changed says so with its heartbeats only: sent_revision is then what was
// offered, and stays that. The held state is as old as the last heartbeat.
func TestAResumedStreamWithoutChangesIsLive(t *testing.T) {
	r := newReplica()
	must(t, r.Open(), hello("e1", 2, 0, kNode), begin(kNode, 2), changes(upsert(1, kNode, "n1", "a")), end(kNode, 2, 1))
	s := r.Open()
	if w := welcomeOf(t, must(t, s, hello("e1", 2, 0, kNode))); w.ResumeRevision != 2 {
		t.Fatalf("welcome %v", w)
	}
	later := now.Add(time.Hour)
	result := testkit.Value(s.Receive(later, sent(2, 2)))(t)
	if rev, ok := ackOf(result); !ok || rev != 2 {
		t.Errorf("ack %d %v", rev, ok)
	}
	if !s.Live() || !r.LastHeard(kNode).Equal(later) {
		t.Errorf("live %v; heard at %s, not %s", s.Live(), r.LastHeard(kNode), later)
	}
}

// A retained object is confirmed on such a stream too.
func TestAResumedStreamWithoutChangesConfirmsTheBrake(t *testing.T) {
	r := newReplica()
	r.SetLimits(config.Limits{}, config.Brake{Percent: 50, AtLeast: 1, Hold: config.Duration{Duration: 10 * time.Minute}})
	must(t, r.Open(), hello("e1", 2, 0, kNode), begin(kNode, 2), changes(upsert(1, kNode, "n1", "a")), end(kNode, 2, 1),
		changes(remove(3, kNode, "n1")))
	if b := r.Retained(kNode, 1); b.Total != 1 {
		t.Fatalf("retained: %+v", b)
	}
	s := r.Open()
	must(t, s, hello("e1", 3, 0, kNode))
	if _, err := s.Receive(now.Add(time.Hour), sent(3, 3)); err == nil {
		t.Error("no other snapshot is asked for an hour after the withdrawal")
	}
}
