package stream

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/agent/events"
	"github.com/kube-semaphore/semaphore/agent/plan"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// sessionStream returns a session that has received the whole state of c2, in a bubble with a clock of its own.
func sessionStream(t *testing.T, restored map[string]*plan.Desired, at time.Time) *Session {
	t.Helper()
	s := NewSession("c1", "192.0.2.1:443", events.New("c1"), func(*semaphorev1.AttachRequest) {})
	if restored != nil {
		s.Restore(restored, at)
	}
	s.Begin(&semaphorev1.AgentReport{})
	receive(t, s, attached("e", false))
	if s.Listens() {
		t.Error("a broker listens that has not sent all")
	}
	receive(t, s, changes(device(1, "c2", 51820)))
	receive(t, s, synced(1, "c2"))
	return s
}

func receive(t *testing.T, s *Session, m *semaphorev1.AttachResponse) {
	t.Helper()
	if _, err := s.Receive(m); err != nil {
		t.Fatal(err)
	}
}

// TestStateIsConfirmedUntilTheStreamEnds: while a broker that has sent everything is attached, the state is confirmed
// now; afterwards, at the end of its stream.
func TestStateIsConfirmedUntilTheStreamEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sessionStream(t, nil, time.Time{})
		time.Sleep(time.Hour)
		if !s.Listens() {
			t.Error("the broker does not listen")
		}
		if r, _ := s.View(time.Now()).Remote("c2"); !r.ConfirmedAt.Equal(time.Now()) {
			t.Errorf("confirmed at %s, now is %s", r.ConfirmedAt, time.Now())
		}
		ended := time.Now()
		s.Ended(errors.New("cut"))
		time.Sleep(time.Hour)
		if s.Listens() {
			t.Error("a broker listens whose stream has ended")
		}
		if r, _ := s.View(time.Now()).Remote("c2"); !r.ConfirmedAt.Equal(ended) {
			t.Errorf("confirmed at %s, the stream ended at %s", r.ConfirmedAt, ended)
		}
	})
}

// TestReportIsOfItsStream: a report is sent once, and only on its stream.
func TestReportIsOfItsStream(t *testing.T) {
	s := sessionStream(t, nil, time.Time{})
	sent := 0
	s.send = func(*semaphorev1.AttachRequest) { sent++ }
	at, report := s.Take().Position, &semaphorev1.AgentReport{Devices: []*semaphorev1.DeviceReport{{Cluster: "c2"}}}
	for range 2 {
		if !s.Send(at, report, true) || sent != 2 {
			t.Errorf("%d messages are sent, and not the report and the revision", sent)
		}
	}
	s.Ended(nil)
	if s.View(time.Now()).LastError == "" {
		t.Error("a stream that ends without a reason is given none")
	}
	s.Begin(&semaphorev1.AgentReport{})
	receive(t, s, attached("f", false))
	receive(t, s, synced(1))
	if s.Send(at, report, true) || sent != 2 {
		t.Error("what is of the stream before is sent on this one")
	}
}

// TestAgeOfASnapshot: the age of a snapshot is that of its oldest part.
func TestAgeOfASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := time.Now().Add(-time.Hour)
		c3 := state(0)["c3"]
		s := sessionStream(t, map[string]*plan.Desired{"c3": c3}, before)
		if c, complete := s.Snapshot(); !complete || len(c.Networks) != 2 || !c.Confirmed.Equal(before) {
			t.Errorf("complete %v, networks %v, confirmed at %s; want %s", complete, c.Networks, c.Confirmed, before)
		}
	})
}

// TestTimeOfAnEvent: an event has the time at which its change was observed, if that is known.
func TestTimeOfAnEvent(t *testing.T) {
	at := time.Unix(1_000_000, 0).UTC()
	change := peer(1, "c2", "n1", "10.2.1.0/24")
	if e := eventOf(change); !e.ObservedAt.IsZero() {
		t.Errorf("observed at %s, which nobody knows", e.ObservedAt)
	}
	change.ObservedAt = timestamppb.New(at)
	if e := eventOf(change); !e.ObservedAt.Equal(at) {
		t.Errorf("observed at %s; want %s", e.ObservedAt, at)
	}
}
