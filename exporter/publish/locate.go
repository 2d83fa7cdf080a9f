package publish

import (
	"fmt"
	"slices"
	"time"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Locate returns the state of a change on the stream to the broker: sent and acknowledged, on its way, or refused, in
// words; and when the broker was last heard.
func (p *Publisher) Locate(key catalog.Key, revision uint64) (state semaphorev1.PlaceState, detail string,
	heard time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, heard := p.session, p.lastReceived
	waiting := semaphorev1.PlaceState_PLACE_STATE_WAITING
	if s == nil {
		return waiting, "no stream: " + p.lastError, heard
	}
	key.Audience = ""
	switch _, lags := p.requiredRevision[key.Kind]; {
	case lags:
		return waiting, "the apiserver lags behind what this broker received before", heard
	case !slices.Contains(s.kinds, key.Kind):
		return waiting, "the stream does not carry this kind yet", heard
	case len(s.snapshots) > 0:
		return waiting, fmt.Sprintf("a snapshot is being sent, %d kinds are left", len(s.snapshots)), heard
	case s.cursor < revision:
		return waiting, fmt.Sprintf("revision %d is not sent yet: sent up to %d", revision, s.cursor), heard
	}
	if r, refused := p.refused[key]; refused {
		return semaphorev1.PlaceState_PLACE_STATE_FAILED, r.code + ": " + r.reason, heard
	}
	if s.acked < revision {
		return waiting, fmt.Sprintf("revision %d is sent, and acknowledged up to %d", revision, s.acked), heard
	}
	if o, reported := p.outcomes[key]; reported {
		return semaphorev1.PlaceState_PLACE_STATE_FAILED, o.code + ": " + o.reason, heard
	}
	return semaphorev1.PlaceState_PLACE_STATE_DONE, fmt.Sprintf("revision %d is acknowledged", revision), heard
}
