// Package debug lets a person watch a part at work: a recorder of what it saw and did,
// and the DebugService that streams it, on a unix socket or any gRPC server.
//
// Recording never waits for a reader. What is recorded must hold no secret.
//
// It imports the messages, internal/program for the version and internal/unixsocket, and no part.
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

// remembered is how many events of one source a recorder keeps for those who ask for the recent past,
// and how far a reader may fall behind before it loses some. What one source does takes nothing of another's.
const remembered = 1024

// maxSources bounds how many sources have events of their own; those of others share what is kept.
const maxSources = 128

// Event is one thing that a part saw or did; see the message of the same name in debug.proto.
type Event struct {
	// Source is the cluster a change came from.
	Source string
	// Object is what was touched, such as "service shop/echo" or "peer c2/n1".
	Object string
	// Action is what happened, one word.
	Action string
	// Detail is what it led to or why.
	Detail string
	// ObservedAt is when the change was seen at its source; zero where nothing is known of it.
	ObservedAt time.Time
}

// Recorder keeps the last events of one part. A nil Recorder records nothing.
type Recorder struct {
	part, cluster, node string

	mu      sync.Mutex
	rings   map[string]*ring // by source
	next    uint64           // events recorded so far
	changed chan struct{}    // closed and replaced at every event, once somebody waits
}

// ring has the last events of one source.
type ring struct {
	events []recorded
	next   int // where the next one goes, once it is full
}

// recorded is an event and its place among all.
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

// from calls do with the events from a place on, the newest first.
func (r *ring) from(position uint64, do func(recorded)) {
	for i := range r.events {
		e := r.events[(r.next+2*len(r.events)-1-i)%len(r.events)]
		if e.at < position {
			return
		}
		do(e)
	}
}

// NewRecorder makes the recorder of one part of a cluster, for an agent of one node.
func NewRecorder(part, cluster, node string) *Recorder {
	return &Recorder{part: part, cluster: cluster, node: node}
}

// SetNode says which node an agent speaks for, once it has been told.
func (r *Recorder) SetNode(node string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.node = node
}

// Record takes note of an event.
func (r *Recorder) Record(e Event) {
	if r == nil {
		return
	}
	m := &semaphorev1.Event{
		Time:    timestamppb.Now(),
		Part:    r.part,
		Cluster: r.cluster,
		Source:  utf8(e.Source),
		Object:  utf8(e.Object),
		Action:  utf8(e.Action),
		Detail:  utf8(e.Detail),
	}
	if !e.ObservedAt.IsZero() {
		m.ObservedAt = timestamppb.New(e.ObservedAt)
	}
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

// utf8 is what protobuf takes for a string: one event with other bytes would end every Watch.
func utf8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// position is where a reader stands that wants the recent past, or only what comes.
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

// after returns the events from position on, how many were lost before them, and the
// next position. It waits until there is one.
func (r *Recorder) after(ctx context.Context, position uint64) (events []*semaphorev1.Event, lost, next uint64, err error) {
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
