package peering

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// undeliveredInterval is how often the undelivered remotes are evaluated. Agents postpone or resume rotations at most
// so long after a change.
const undeliveredInterval = time.Second

// WatchUndelivered sends to agents which remotes do not receive what this cluster publishes, by cluster with the
// reason, until ctx ends.
func (s *Server) WatchUndelivered(ctx context.Context, undelivered func(time.Time) map[string]string) error {
	tick := time.NewTicker(undeliveredInterval)
	defer tick.Stop()
	for {
		s.SetUndelivered(undelivered(s.now()))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// setUndelivered sends every agent, if it changed, which remotes do not receive what this cluster publishes, and why.
func (s *Server) SetUndelivered(reasons map[string]string) {
	s.mu.Lock()
	if maps.Equal(s.reasons, reasons) {
		s.mu.Unlock()
		return
	}
	was := s.reasons
	s.reasons, s.undelivered = maps.Clone(reasons), nil
	if len(reasons) > 0 {
		s.undelivered = &semaphorev1.Undelivered{}
	}
	for _, cluster := range slices.Sorted(maps.Keys(reasons)) {
		s.undelivered.Remotes = append(s.undelivered.Remotes,
			&semaphorev1.UndeliveredRemote{Cluster: cluster, Reason: reasons[cluster]})
	}
	m := s.undelivered
	attached := slices.Collect(maps.Values(s.attached))
	s.mu.Unlock()
	for cluster, why := range reasons {
		if was[cluster] != why {
			s.options.Log.Warn("a remote does not receive what this cluster publishes; agents do not rotate their keys for it",
				"cluster", cluster, "reason", why)
			s.options.Recorder.Record(debug.Event{Source: cluster, Object: "cluster " + cluster, Action: "undelivered",
				Detail: why})
		}
	}
	for cluster := range was {
		if _, still := reasons[cluster]; !still {
			s.options.Log.Info("a remote receives again what this cluster publishes", "cluster", cluster)
			s.options.Recorder.Record(debug.Event{Source: cluster, Object: "cluster " + cluster, Action: "delivered"})
		}
	}
	for _, a := range attached {
		a.mu.Lock()
		a.session.setUndelivered(m)
		a.mu.Unlock()
		a.wake()
	}
}

// Undelivered returns why a remote does not receive what this cluster publishes; empty if it does, or nothing is
// known.
func (s *Server) Undelivered(cluster string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reasons[cluster]
}
