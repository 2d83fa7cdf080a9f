// Package events reports what happens on the node: to clients of the agent's debug socket, and to the log.
//
// It owns the recorder. An Event goes in; a record and, where the event says so, a line of the log come out. It imports
// no other package of the agent and decides nothing: what is worth an event is its callers' business.
//
// It may import no other package of the agent.
package events

import (
	"context"
	"log/slog"
	"runtime"
	"time"

	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Event is one thing that the agent saw or did. It holds no secret.
type Event struct {
	// Cluster is the remote cluster that the event is about, or the own one.
	Cluster string
	// Object is what was touched, such as "device wg.c2" or "peer c2/n1".
	Object string
	// Action is what happened, one word.
	Action string
	// Detail is what it led to, or why.
	Detail string
	// ObservedAt is when a change was seen in its own cluster, on the clock there; zero for unknown.
	ObservedAt time.Time

	level   slog.Level
	message string
	args    []any
}

// Device is an event of the device to a cluster.
func Device(cluster, action, detail string) Event {
	return Event{Cluster: cluster, Object: "device " + naming.Device(cluster), Action: action, Detail: detail}
}

// Peer is an event of one peer: a node of a remote cluster.
func Peer(cluster, node, action, detail string) Event {
	return Event{Cluster: cluster, Object: "peer " + cluster + "/" + node, Action: action, Detail: detail}
}

// Log has the event logged too.
func (e Event) Log(level slog.Level, message string, args ...any) Event {
	e.level, e.message, e.args = level, message, args
	return e
}

// Info has the event logged as a change of state.
func (e Event) Info(message string, args ...any) Event {
	return e.Log(slog.LevelInfo, message, args...)
}

// Warn has the event logged as something that an operator should look at.
func (e Event) Warn(message string, args ...any) Event {
	return e.Log(slog.LevelWarn, message, args...)
}

// Sink takes the events of one agent. It is safe for concurrent use and never waits for a reader.
type Sink struct{ recorder *debug.Recorder }

// New makes the sink of the agent of a cluster.
func New(cluster string) *Sink { return &Sink{recorder: debug.NewRecorder("agent", cluster, "")} }

// Recorder is what the debug socket serves.
func (s *Sink) Recorder() *debug.Recorder { return s.recorder }

// SetNode names the node in all later records.
func (s *Sink) SetNode(node string) { s.recorder.SetNode(node) }

// Emit reports an event.
func (s *Sink) Emit(e Event) {
	if ctx := context.Background(); e.message != "" && slog.Default().Enabled(ctx, e.level) {
		// The place of the line is the caller's: the log is bounded by place.
		var pc [1]uintptr
		runtime.Callers(2, pc[:])
		r := slog.NewRecord(time.Now(), e.level, e.message, pc[0])
		r.Add(e.args...)
		_ = slog.Default().Handler().Handle(ctx, r)
	}
	s.recorder.Record(debug.Event{
		Source: e.Cluster, Object: e.Object, Action: e.Action, Detail: e.Detail, ObservedAt: e.ObservedAt,
	})
}
