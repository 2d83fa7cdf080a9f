package redteam

import (
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestAcknowledgedWhilePaced checks that the accepted changes of a remote over its rate are acknowledged while others
// wait, and that a connection without a stream ends after half a minute.
func TestAcknowledgedWhilePaced(t *testing.T) {
	v := start(t, limit("c2", v1alpha1.Limits{ChangesPerSecond: 50}))
	idle := idleConnections(v)
	s, _ := v.sends("c2", "e1", 1, ofMembers)
	go func() {
		for i := range uint64(2000) { // the burst is 500, then 50 a second
			if s.call.SendMsg(encode(t, changesOf(upsert(2+i, member(int(i%100), "10.2.0.1"))))) != nil {
				return
			}
		}
	}()
	acked, paced := uint64(0), 0
	for acked < 1000 {
		m, err := s.next(patience)
		if err != nil {
			t.Fatalf("at %d: %v", acked, err)
		}
		if a := m.GetAck(); a != nil {
			if acked = a.GetRevision(); acked > 600 {
				paced++
			}
		}
	}
	// Each message is acknowledged when it is accepted: those after the first 600 one by one, not with the last one.
	if paced < 20 || acked > 1900 {
		t.Errorf("after what came at once %d acknowledgements led to %d of 2,001", paced, acked)
	}
	if v.metric("semaphore_broker_limited_total", `cluster="c2"`, `limit="changes"`) == 0 {
		t.Error("semaphore_broker_limited_total counts nothing")
	}
	took := <-idle
	t.Logf("a stranger's connection without a stream ended after %s", took)
	if took < 20*time.Second || took >= patience {
		t.Errorf("a stranger's connection without a stream ended after %s, not half a minute", took)
	}
}

// TestRefusalsAreSentAgain checks that an exporter that restarts with the same objects receives the refusals again.
func TestRefusalsAreSentAgain(t *testing.T) {
	v := start(t)
	kind := semaphorev1.Kind_KIND_SET_MEMBER
	first := v.publish("c2")
	first.tell(hello("c2", "e1", 2, kind))
	testkit.Value(first.next(patience))(t)
	first.tell(snapshot(kind, 2, member(1, "10.2.0.1"), member(2, "8.8.8.8"))...)
	if r := first.acked(2); len(r) != 1 || r[0].GetCode() != "IPOutsidePodSubnets" {
		t.Fatalf("refused at first: %v", r)
	}
	second := v.publish("c2")
	second.tell(hello("c2", "e2", 7, kind))
	m, err := second.next(patience)
	if err != nil || len(m.GetWelcome().GetHeld()) != 1 {
		t.Fatalf("%v, %v", m, err)
	}
	held := m.GetWelcome().GetHeld()[0]
	second.tell(
		&semaphorev1.PublishRequest{
			Message: &semaphorev1.PublishRequest_SnapshotUnchanged{SnapshotUnchanged: &semaphorev1.SnapshotUnchanged{
				Kind: kind, Revision: 7, Objects: held.GetObjects(), Digest: held.GetDigest(),
			}},
		},
	)
	if r := second.acked(7); len(r) != 1 || r[0].GetKey().GetName() != "pod-2" || r[0].GetRevision() != 7 {
		t.Errorf("refused after an unchanged snapshot: %v", r)
	}
}
