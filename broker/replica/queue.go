package replica

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// maxBatches and maxBytes limit the queued changes of a remote; above them its stream must wait. A stream waits
	// after a push, so each limit may be exceeded by one message.
	maxBatches, maxBytes = 16, 1 << 20
	// turnChanges and turnTime bound a turn: it ends with the part that reaches either limit.
	turnChanges, turnTime = 256, 2 * time.Millisecond
)

// Part is a part of the changes of one message.
type Part struct {
	Cluster string
	Changes []Change
	// Completed is set with the last part of a message that completed a snapshot of the kind.
	Completed semaphorev1.Kind
}

// Queue holds the changes of replicas until one engine handles them: a bounded FIFO for each remote, served in fair
// turns. A stream pushes without blocking, in the order of its remote's replica, and then waits for room before it
// reads on. An engine handles a few hundred changes or milliseconds of one remote, then of the next. A remote that
// changes faster than an engine can handle therefore delays itself, and others wait for one of its turns.
//
// Push and Room are safe for concurrent use, Turn is not.
type Queue struct {
	// kinds are the kinds of changes that the engine handles.
	kinds []semaphorev1.Kind
	split func([]Change) [][]Change

	mu    sync.Mutex
	fifos map[string]*fifo
	// order are the remotes with queued changes, in the order of their turns.
	order []string
	wake  chan struct{}
}

type fifo struct {
	batches []batch
	bytes   int
	// queued means that the remote is in order.
	queued bool
	// room is closed when there is room; nil while no stream waits.
	room chan struct{}
}

// batch holds the remaining parts of the changes of one message.
type batch struct {
	parts     [][]Change
	completed semaphorev1.Kind
	bytes     int
}

// NewQueue makes an empty queue of an engine that handles changes of some kinds. split splits the changes of one
// message where they may be applied separately; nil for everywhere.
func NewQueue(split func([]Change) [][]Change, kinds ...semaphorev1.Kind) *Queue {
	return &Queue{kinds: kinds, split: split, fifos: map[string]*fifo{}, wake: make(chan struct{}, 1)}
}

// Push appends the changes of a message of a remote. It never blocks.
func (q *Queue) Push(cluster string, r Result) {
	b := batch{}
	if slices.Contains(q.kinds, r.Completed) {
		b.completed = r.Completed
	}
	var changes []Change
	for _, c := range r.Changes {
		if slices.Contains(q.kinds, c.Key.Kind) {
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

// parts splits the changes of one message into small parts where possible.
func (q *Queue) parts(changes []Change) [][]Change {
	const few = turnChanges / 8
	switch {
	case len(changes) == 0:
		return [][]Change{nil}
	case q.split != nil && len(changes) > few:
		return q.split(changes)
	}
	return slices.Collect(slices.Chunk(changes, few))
}

// full reports whether a stream of the remote must wait. The caller must hold mu.
func (f *fifo) full() bool {
	return len(f.batches) >= maxBatches || f.bytes >= maxBytes && len(f.batches) > 1
}

// Holds reports whether something of a remote is queued or handled.
func (q *Queue) Holds(cluster string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.fifos[cluster]
	return f != nil && f.queued
}

// Room returns nil if there is room for another message of a remote; else a channel that is closed when there is.
func (q *Queue) Room(cluster string) <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.fifos[cluster]
	if f == nil || !f.full() {
		return nil
	}
	if f.room == nil {
		f.room = make(chan struct{})
	}
	return f.room
}

// Turn calls do with the next parts of the remote whose turn it is. It returns false if nothing is queued.
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
		// Only Turn removes from the front, and Push appends at the end.
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

// Run takes turns until ctx ends, and returns ctx's error. It calls do with each part, and due at the time that next
// returns, zero for never; do and due may change that time.
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
		case <-q.wake:
		case <-timer:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// Wake makes Run call next again.
func (q *Queue) Wake() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}
