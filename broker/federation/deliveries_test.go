package federation

import (
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Whether a remote receives what is published is what the own exporter says; where it can say nothing, what is seen of
// the remote's.
func TestUndelivered(t *testing.T) {
	now := time.Now()
	ok, not := &semaphorev1.Delivery{Cluster: "c2", Acknowledged: true},
		&semaphorev1.Delivery{Cluster: "c2", Problem: "no stream"}
	for name, c := range map[string]struct {
		own, ownConnected, remoteConnected bool
		said                               []*semaphorev1.Delivery
		age                                time.Duration
		undelivered                        bool
	}{
		"acknowledged": {own: true, ownConnected: true, said: []*semaphorev1.Delivery{ok}},
		"not acknowledged, and the remote publishes": {own: true, ownConnected: true, remoteConnected: true,
			said: []*semaphorev1.Delivery{not}, undelivered: true},
		"said too long ago": {own: true, remoteConnected: true,
			said: []*semaphorev1.Delivery{ok}, age: time.Minute, undelivered: true},
		"of another remote only": {own: true, ownConnected: true,
			said: []*semaphorev1.Delivery{{Cluster: "c3", Acknowledged: true}}, undelivered: true},
		"the own exporter is not there yet":              {own: true, remoteConnected: true, undelivered: true},
		"the own exporter says nothing, the remote does": {own: true, ownConnected: true, remoteConnected: true},
		"the own exporter says nothing, nor the remote":  {own: true, ownConnected: true, undelivered: true},
		"it is not taken, and the remote publishes":      {remoteConnected: true},
		"it is not taken, and the remote is gone":        {undelivered: true},
	} {
		t.Run(name, func(t *testing.T) {
			var own *config.Remote
			if c.own {
				own = &config.Remote{Name: "c1"}
			}
			s := begun(Options{}, onlyC2, own, Engines{})
			connect := func(cluster string, is bool) {
				if is {
					s.all()[cluster].isConnected.Store(true)
				}
			}
			connect("c2", c.remoteConnected)
			connect("c1", c.ownConnected)
			s.setDeliveries(now.Add(-c.age), c.said)
			got := s.Undelivered(now)
			if why, is := got["c2"]; is != c.undelivered || is && why == "" || len(got) > 1 {
				t.Errorf("%q", got)
			}
		})
	}
}

// TestNothingIsDelivered: the own exporter that no longer publishes to any remote's broker is connected all the same.
func TestNothingIsDelivered(t *testing.T) {
	now := time.Now()
	s := begun(Options{}, onlyC2, &config.Remote{Name: "c1"}, Engines{})
	s.all()["c1"].isConnected.Store(true)
	s.setDeliveries(now.Add(-deliveriesValid-time.Second), []*semaphorev1.Delivery{{Cluster: "c2", Acknowledged: true}})
	s.setDeliveries(now, nil)
	if got := s.Undelivered(now)["c2"]; got != "this cluster's exporter does not publish to the remote's broker" {
		t.Errorf("%q", got)
	}
}
