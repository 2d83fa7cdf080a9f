// Package debug lets an operator watch a part at work: a recorder of its observations and actions, and the DebugService
// that streams them, on a unix socket or any gRPC server.
//
// Recording never blocks on a reader. Events must contain no secret.
package debug

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// remembered is how many events of one source a recorder keeps for readers that ask for the recent past, and how far a
// reader may fall behind before it loses some. Sources do not displace each other's events.
const remembered = 1024

// maxSources bounds the sources with a ring of their own; the others share one.
const maxSources = 128

// Event is an observation or an action of a part; see the message of the same name in debug.proto.
type Event struct {
	// Source is the cluster a change came from.
	Source string
	// Object is the touched object, such as "service shop/echo" or "peer c2/n1".
	Object string
	// Action is a single word.
	Action string
	// To is the cluster that a change was sent to; Detail names it, too.
	To string
	// Detail is the result or the reason.
	Detail string
	// ObservedAt is when the change was seen at its source; zero if unknown.
	ObservedAt time.Time
	// At is the time of the event; now if zero.
	At time.Time
}

// Recorder keeps the last events of one part. A nil Recorder records nothing.
type Recorder struct {
	part, cluster, node string

	mu      sync.Mutex
	rings   map[string]*ring // by source
	next    uint64           // events recorded so far
	changed chan struct{}    // closed and replaced at every event if a reader waits
}

type ring struct {
	events []recorded
	next   int // index of the next event, once it is full
}

type recorded struct {
	at    uint64
	event *semaphorev1.Event
}

func (r *ring) add(e recorded) {
	if len(r.events) < remembered {
		r.events = append(r.events, e)
		return
	}
	r.events[r.next] = e
	r.next = (r.next + 1) % remembered
}

// from calls do with the events from a position on, the newest first.
func (r *ring) from(position uint64, do func(recorded)) {
	for i := range r.events {
		e := r.events[(r.next+2*len(r.events)-1-i)%len(r.events)]
		if e.at < position {
			return
		}
		do(e)
	}
}

func NewRecorder(part, cluster, node string) *Recorder {
	return &Recorder{part: part, cluster: cluster, node: node}
}

// SetNode sets the node of an agent, once it is known.
func (r *Recorder) SetNode(node string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.node = node
}

func (r *Recorder) Record(e Event) {
	if r == nil {
		return
	}
	if e.At.IsZero() {
		e.At = time.Now()
	}
	m := &semaphorev1.Event{
		Time:    timestamppb.New(e.At),
		Part:    r.part,
		Cluster: r.cluster,
		Source:  utf8(e.Source),
		Object:  utf8(e.Object),
		Action:  utf8(e.Action),
		Detail:  utf8(e.Detail),
	}
	m.ObservedAt = semaphorev1.Time(e.ObservedAt)
	r.mu.Lock()
	defer r.mu.Unlock()
	m.Node = r.node
	of := r.rings[e.Source]
	if of == nil {
		source := e.Source
		if len(r.rings) >= maxSources {
			source = ""
		}
		if of = r.rings[source]; of == nil {
			if r.rings == nil {
				r.rings = map[string]*ring{}
			}
			of = &ring{}
			r.rings[source] = of
		}
	}
	of.add(recorded{r.next, m})
	r.next++
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// utf8 replaces invalid bytes: protobuf refuses a string with such bytes, and one event would end every Watch.
func utf8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// position returns where a reader starts that wants the recent past, or only new events.
func (r *Recorder) position(recent bool) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !recent {
		return r.next
	}
	first := r.next
	for _, of := range r.rings {
		first = min(first, of.events[of.next%len(of.events)].at)
	}
	return first
}

// after returns the events from position on, how many were lost before them, and the next position. It waits until
// there is one.
func (r *Recorder) after(ctx context.Context, position uint64) (events []*semaphorev1.Event, lost, next uint64,
	err error) {
	for {
		r.mu.Lock()
		if r.next > position {
			var found []recorded
			for _, of := range r.rings {
				of.from(position, func(e recorded) { found = append(found, e) })
			}
			next = r.next
			r.mu.Unlock()
			slices.SortFunc(found, func(a, b recorded) int { return cmp.Compare(a.at, b.at) })
			for _, e := range found {
				events = append(events, e.event)
			}
			return events, next - position - uint64(len(events)), next, nil
		}
		if r.changed == nil {
			r.changed = make(chan struct{})
		}
		changed := r.changed
		r.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, 0, position, ctx.Err()
		}
	}
}

// Recent returns the last n events of all sources, oldest first.
func (r *Recorder) Recent(n int) []*semaphorev1.Event {
	if r == nil {
		return nil
	}
	var found []recorded
	r.mu.Lock()
	for _, of := range r.rings {
		taken := 0
		of.from(0, func(e recorded) {
			if taken++; taken <= n {
				found = append(found, e)
			}
		})
	}
	r.mu.Unlock()
	slices.SortFunc(found, func(a, b recorded) int { return cmp.Compare(a.at, b.at) })
	var out []*semaphorev1.Event
	for _, e := range found[max(0, len(found)-n):] {
		out = append(out, e.event)
	}
	return out
}
