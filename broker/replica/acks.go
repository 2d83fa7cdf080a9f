package replica

import (
	"time"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// ackEvery is how long an acknowledgement may wait for a newer one.
const ackEvery = time.Second

// Acks decides when the acknowledgements of one stream go out. While more messages wait to be taken, an acknowledgement waits for a
// newer one that replaces it, but no longer than ackEvery: an exporter that always has more to send still learns how far the broker
// is. The zero value is ready to use.
type Acks struct {
	pending *semaphorev1.PublishResponse
	sentAt  time.Time
}

// Send returns which of the responses to a message to send now, in order. waiting says that another message has come already.
func (a *Acks) Send(now time.Time, responses []*semaphorev1.PublishResponse, waiting bool) []*semaphorev1.PublishResponse {
	var send []*semaphorev1.PublishResponse
	for _, m := range responses {
		if m.GetAck() != nil {
			a.pending = m
		} else {
			send = append(send, m)
		}
	}
	if a.pending != nil && (!waiting || now.Sub(a.sentAt) >= ackEvery) {
		send = append(send, a.Flush(now))
	}
	return send
}

// Flush returns the acknowledgement that waits, and takes it for sent; nil for none. It is for a reader that pauses.
func (a *Acks) Flush(now time.Time) *semaphorev1.PublishResponse {
	m := a.pending
	if m != nil {
		a.pending, a.sentAt = nil, now
	}
	return m
}
