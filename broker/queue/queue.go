// Package queue keeps what streams of remotes led to until an engine takes it: a bounded FIFO a remote, taken in fair turns.
//
// A stream pushes without waiting, in the order of its remote's replica, and then waits for room before it reads on. An engine takes
// turns over the remotes: a few hundred changes or milliseconds of one, then of the next. So a remote that changes more than an
// engine can take waits for itself, and others wait for one turn of it.
package queue

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/broker/replica"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// maxBatches and maxBytes are how much of a remote may wait before its stream does. A stream that has pushed waits then, so that
	// each may exceed it by one message.
	maxBatches, maxBytes = 16, 1 << 20
	// turnChanges and turnTime bound a turn: it ends with the part by which either is reached.
	turnChanges, turnTime = 256, 2 * time.Millisecond
)

// Part is a part of what one message led to.
type Part struct {
	Cluster string
	Changes []replica.Change
	// Completed is the kind of which a whole snapshot was taken over, with the last part of it.
	Completed semaphorev1.Kind
}

// Queue is what waits for one engine. Push and Room may be called from any goroutine, Turn by one at a time.
type Queue struct {
	// takes are the kinds of which the engine takes changes.
	takes map[semaphorev1.Kind]bool
	cut   func([]replica.Change) [][]replica.Change

	mu    sync.Mutex
	fifos map[string]*fifo
	// order are the remotes of which something waits, in the order of their turns.
	order []string
	news  chan struct{}
}

type fifo struct {
	batches []batch
	bytes   int
	// queued says that the remote has a place in the order of turns.
	queued bool
	// room is closed when there is some; nil while nobody waits for it.
	room chan struct{}
}

// batch is what one message led to, as parts that are left.
type batch struct {
	parts     [][]replica.Change
	completed semaphorev1.Kind
	bytes     int
}

// New makes an empty queue of an engine that takes changes of some kinds. cut takes the changes of one message apart where they
// may be applied one after the other; nil for everywhere.
func New(cut func([]replica.Change) [][]replica.Change, kinds ...semaphorev1.Kind) *Queue {
	q := &Queue{takes: map[semaphorev1.Kind]bool{}, cut: cut, fifos: map[string]*fifo{}, news: make(chan struct{}, 1)}
	for _, kind := range kinds {
		q.takes[kind] = true
	}
	return q
}

// Push appends what a message of a remote led to. It never waits.
func (q *Queue) Push(cluster string, r replica.Result) {
	b := batch{}
	if q.takes[r.Completed] {
		b.completed = r.Completed
	}
	var changes []replica.Change
	for _, c := range r.Changes {
		if q.takes[c.Key.Kind] {
			changes = append(changes, c)
			if b.bytes < maxBytes {
				b.bytes += proto.Size(c.New)
			}
		}
	}
	if len(changes) == 0 && b.completed == semaphorev1.Kind_KIND_UNSPECIFIED {
		return
	}
	b.parts = q.parts(changes)
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.fifos[cluster]
	if f == nil {
		f = &fifo{}
		q.fifos[cluster] = f
	}
	if f.batches = append(f.batches, b); !f.queued {
		f.queued = true
		q.order = append(q.order, cluster)
	}
	f.bytes += b.bytes
	q.Wake()
}

// parts are the changes of one message in pieces that are small where they can be.
func (q *Queue) parts(changes []replica.Change) [][]replica.Change {
	const few = turnChanges / 8
	if len(changes) == 0 {
		return [][]replica.Change{nil}
	}
	if q.cut != nil {
		if len(changes) <= few {
			return [][]replica.Change{changes}
		}
		return q.cut(changes)
	}
	var parts [][]replica.Change
	for len(changes) > few {
		parts = append(parts, changes[:few:few])
		changes = changes[few:]
	}
	return append(parts, changes)
}

// full says whether a stream of the remote has to wait. The caller holds mu.
func (f *fifo) full() bool {
	return len(f.batches) >= maxBatches || f.bytes >= maxBytes && len(f.batches) > 1
}

// Full says whether a stream of a remote has to wait before it reads on.
func (q *Queue) Full(cluster string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.fifos[cluster]
	return f != nil && f.full()
}

// Room waits until there is room for another message of a remote, or ctx ends.
func (q *Queue) Room(ctx context.Context, cluster string) error {
	for {
		q.mu.Lock()
		f := q.fifos[cluster]
		if f == nil || !f.full() {
			q.mu.Unlock()
			return nil
		}
		if f.room == nil {
			f.room = make(chan struct{})
		}
		room := f.room
		q.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Turn calls do with the next parts of the remote whose turn it is; false where nothing waits.
func (q *Queue) Turn(now func() time.Time, do func(Part)) bool {
	q.mu.Lock()
	if len(q.order) == 0 {
		q.mu.Unlock()
		return false
	}
	cluster := q.order[0]
	f := q.fifos[cluster]
	q.mu.Unlock()
	begin, changes := now(), 0
	for {
		// Only Turn takes from the front, and Push appends behind it.
		q.mu.Lock()
		b := &f.batches[0]
		part := Part{Cluster: cluster, Changes: b.parts[0]}
		if b.parts = b.parts[1:]; len(b.parts) == 0 {
			part.Completed = b.completed
			f.bytes -= b.bytes
			f.batches[0] = batch{}
			f.batches = f.batches[1:]
		}
		empty := len(f.batches) == 0
		q.mu.Unlock()
		do(part)
		if changes += len(part.Changes); empty || changes >= turnChanges || now().Sub(begin) >= turnTime {
			break
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.order = q.order[1:]
	if f.queued = len(f.batches) > 0; f.queued {
		q.order = append(q.order, cluster)
	}
	if f.room != nil && !f.full() {
		close(f.room)
		f.room = nil
	}
	return true
}

// Run takes turns until ctx ends: do takes the parts, and time is called when next, which do and time may change, has come; zero for never.
func (q *Queue) Run(ctx context.Context, do func(Part), next func() time.Time, due func()) error {
	for ctx.Err() == nil {
		at := next()
		if !at.IsZero() && !time.Now().Before(at) {
			due()
		}
		if q.Turn(time.Now, do) {
			continue
		}
		var timer <-chan time.Time
		if at = next(); !at.IsZero() {
			timer = time.After(max(time.Until(at), time.Millisecond))
		}
		select {
		case <-q.news:
		case <-timer:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// Wake has Run look at next again.
func (q *Queue) Wake() {
	select {
	case q.news <- struct{}{}:
	default:
	}
}
