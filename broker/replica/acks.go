package replica

import (
	"time"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// maxAckDelay is how long an acknowledgement may wait for a newer one.
const maxAckDelay = time.Second

// Acks decides when the acknowledgements of one stream are sent. While more messages wait to be received, an
// acknowledgement waits for a newer one that replaces it. It waits at most maxAckDelay, so that an exporter that always
// has more to send learns the broker's progress. The zero value is ready to use.
type Acks struct {
	pending *semaphorev1.PublishResponse
	sentAt  time.Time
}

// Send returns which of the responses to a message to send now, in order. waiting means that another message has
// arrived already.
func (a *Acks) Send(now time.Time, responses []*semaphorev1.PublishResponse,
	waiting bool) []*semaphorev1.PublishResponse {
	var send []*semaphorev1.PublishResponse
	for _, m := range responses {
		if m.GetAck() != nil {
			a.pending = m
		} else {
			send = append(send, m)
		}
	}
	if a.pending != nil && (!waiting || now.Sub(a.sentAt) >= maxAckDelay) {
		send = append(send, a.Flush(now))
	}
	return send
}

// Flush returns the pending acknowledgement and marks it as sent; nil for none. A reader that pauses calls it.
func (a *Acks) Flush(now time.Time) (m *semaphorev1.PublishResponse) {
	if m = a.pending; m != nil {
		a.pending, a.sentAt = nil, now
	}
	return m
}
