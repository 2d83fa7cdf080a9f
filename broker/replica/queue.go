package replica

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/internal/waiting"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// maxMessages and maxBytes limit what is queued of a remote; above them its stream must wait. A stream waits after a
// push, so each limit may be exceeded by one message.
const maxMessages, maxBytes = 16, 1 << 20

// PartChanges is the most changes of a part, unless the engine splits messages itself. A part is a turn of its remote.
const PartChanges = 32

// Part is a part of the changes of one message.
type Part struct {
	Cluster string
	Changes []Change
	// Completed is set with the last part of a message that completed a snapshot of the kind.
	Completed semaphorev1.Kind
	// Hello is set with the last part of the first message of a stream.
	Hello *semaphorev1.Hello
}

// Queue holds the changes of replicas until one engine handles them: a bounded FIFO for each remote, served in fair
// turns. A stream pushes without blocking, in the order of its remote's replica, and then waits for room before it
// reads on. A remote that changes faster than an engine can handle therefore delays itself, and others wait for one
// part of its changes.
//
// Push and Room are safe for concurrent use, Turn is not.
type Queue struct {
	// kinds are the kinds of changes that the engine handles.
	kinds []semaphorev1.Kind
	split func([]Change) [][]Change

	mu    sync.Mutex
	lines waiting.Lines[queued]
	loads map[string]*load
	wake  chan struct{}
}

// queued is a part, and with the last one of a message the bytes of all.
type queued struct {
	Part
	last  bool
	bytes int
}

// load counts the messages of a remote of which a part is queued or handled.
type load struct {
	messages, bytes int
	// room is closed when there is room; nil while no stream waits.
	room chan struct{}
}

// NewQueue makes an empty queue of an engine that handles changes of some kinds. split splits the changes of one
// message where they may be applied separately; nil for everywhere.
func NewQueue(split func([]Change) [][]Change, kinds ...semaphorev1.Kind) *Queue {
	return &Queue{kinds: kinds, split: split, loads: map[string]*load{}, wake: make(chan struct{}, 1)}
}

// Push appends the changes of a message of a remote. It never blocks.
func (q *Queue) Push(cluster string, r Result) {
	var completed semaphorev1.Kind
	if slices.Contains(q.kinds, r.Completed) {
		completed = r.Completed
	}
	var changes []Change
	size := 0
	for _, c := range r.Changes {
		if slices.Contains(q.kinds, c.Key.Kind) {
			changes = append(changes, c)
			if size < maxBytes {
				size += proto.Size(c.New)
			}
		}
	}
	if len(changes) == 0 && completed == semaphorev1.Kind_KIND_UNSPECIFIED && r.Hello == nil {
		return
	}
	parts := q.parts(changes)
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.loads[cluster]
	if l == nil {
		l = &load{}
		q.loads[cluster] = l
	}
	for i, part := range parts {
		one := queued{Part: Part{Cluster: cluster, Changes: part}}
		if one.last = i == len(parts)-1; one.last {
			one.Completed, one.Hello, one.bytes = completed, r.Hello, size
		}
		q.lines.Push(cluster, one)
	}
	l.messages, l.bytes = l.messages+1, l.bytes+size
	q.Wake()
}

// parts splits the changes of one message into small parts where possible.
func (q *Queue) parts(changes []Change) [][]Change {
	switch {
	case len(changes) == 0:
		return [][]Change{nil}
	case q.split != nil && len(changes) > PartChanges:
		return q.split(changes)
	}
	return slices.Collect(slices.Chunk(changes, PartChanges))
}

// full reports whether a stream of the remote must wait. The caller must hold mu.
func (l *load) full() bool { return l.messages >= maxMessages || l.bytes >= maxBytes && l.messages > 1 }

func (q *Queue) Holds(cluster string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.loads[cluster] != nil
}

// Room returns nil if there is room for another message of a remote; else a channel that is closed when there is.
func (q *Queue) Room(cluster string) <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.loads[cluster]
	if l == nil || !l.full() {
		return nil
	}
	if l.room == nil {
		l.room = make(chan struct{})
	}
	return l.room
}

// Turn calls do with the next part of the remote whose turn it is. It returns false if nothing is queued.
func (q *Queue) Turn(do func(Part)) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	cluster, part, ok := q.lines.Pop(func(string) bool { return false }, func(queued) bool { return false })
	if !ok {
		return false
	}
	q.mu.Unlock()
	do(part.Part)
	q.mu.Lock()
	l := q.loads[cluster]
	if part.last {
		l.messages, l.bytes = l.messages-1, l.bytes-part.bytes
	}
	if l.room != nil && !l.full() {
		close(l.room)
		l.room = nil
	}
	if l.messages == 0 {
		delete(q.loads, cluster)
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
		if q.Turn(do) {
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
