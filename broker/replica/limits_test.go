package replica

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func twoServices() *semaphorev1.PublishRequest {
	return changes(put(1, serviceOf("a", 1, true)), put(2, serviceOf("b", 1, true)))
}

// TestARaisedLimitLetsIn: objects over a limit are requested again once the operator raises the limit.
func TestARaisedLimitLetsIn(t *testing.T) {
	r, s := limited(t, config.Limits{Services: 1})
	now := now.Add(time.Hour)
	_, err := s.Receive(now, twoServices())
	if err != nil {
		t.Fatal(err)
	}
	if n, refused := r.Count(kService); n != 1 || refused != 1 {
		t.Fatal(n, refused)
	}
	for range 30 { // five minutes of heartbeats: nothing to request
		now = now.Add(10 * time.Second)
		if _, err := s.Receive(now, sent(2, 2)); err != nil {
			t.Fatal("before", err)
		}
	}
	r.SetLimits(config.Limits{Services: 100}, config.Brake{Percent: 100}) // federation's link.change
	for range 360 * 24 {                                                  // a day of heartbeats
		now = now.Add(10 * time.Second)
		if _, err := s.Receive(now, sent(2, 2)); status.Code(err) == codes.Aborted {
			return
		}
	}
	_, refused := r.Count(kService)
	t.Errorf("a day after the limit was raised to 100, %d of 2 services are still refused, and no snapshot was requested",
		refused)
}

// TestAKindThatIsNoLongerExported does not make each heartbeat end the stream.
func TestAKindThatIsNoLongerExported(t *testing.T) {
	r, _ := limited(t, config.Limits{})
	s := r.Open()
	must(t, s, hello("e2", 0, 0, kNode, kService, kSlice)) // policy was turned off
	now := now.Add(time.Hour)
	for _, of := range []semaphorev1.Kind{kNode, kService, kSlice} {
		for _, m := range []*semaphorev1.PublishRequest{begin(of, 0), end(of, 0, 0)} {
			if _, err := s.Receive(now, m); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := r.Resync(now.Add(5*time.Second), "x"); err != nil {
		t.Errorf("5 s after all snapshots of the stream: %v", err)
	}
}

// TestALimitThatChangesWithinASnapshot holds after it.
func TestALimitThatChangesWithinASnapshot(t *testing.T) {
	r := newReplica()
	r.SetLimits(config.Limits{Services: 1}, config.Brake{Percent: 100})
	s := r.Open()
	must(t, s, hello("e1", 0, 0, kService))
	must(t, s, begin(kService, 0))
	r.SetLimits(config.Limits{Services: 100}, config.Brake{Percent: 100})
	must(t, s, end(kService, 0, 0))
	now := now.Add(time.Hour)
	if _, err := s.Receive(now, twoServices()); err != nil {
		t.Fatal(err)
	}
	if n, refused := r.Count(kService); n != 2 || refused != 0 {
		t.Errorf("limit 100 (status says %d): %d accepted, %d refused: %v", r.Limit(kService), n, refused, r.Refused())
	}
}
