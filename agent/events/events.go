// Package events reports events of the node to clients of the agent's debug socket, and to the log, and bounds the
// texts of problems for a report.
//
// It owns the recorder. In: an Event. Out: a record and, if the event has one, a log line. It decides nothing: its
// callers decide which changes are worth an event.
package events

import (
	"context"
	"log/slog"
	"runtime"
	"time"

	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Event is one thing that the agent observed or did. It contains no secret.
type Event struct {
	// Cluster is the remote cluster of the event, or the own one.
	Cluster string
	// Object is the affected object, such as "device wg.c2" or "peer c2/n1".
	Object string
	// Action is the kind of the event, one word.
	Action string
	// Detail is the result, or the reason.
	Detail string
	// ObservedAt is when a change was observed in its own cluster, on the clock there; zero for unknown.
	ObservedAt time.Time

	level   slog.Level
	message string
	args    []any
}

func Device(cluster, action, detail string) Event {
	return Event{Cluster: cluster, Object: "device " + naming.Device(cluster), Action: action, Detail: detail}
}

func Peer(cluster, node, action, detail string) Event {
	return Event{Cluster: cluster, Object: "peer " + cluster + "/" + node, Action: action, Detail: detail}
}

func (e Event) Log(level slog.Level, message string, args ...any) Event {
	e.level, e.message, e.args = level, message, args
	return e
}

func (e Event) Info(message string, args ...any) Event {
	return e.Log(slog.LevelInfo, message, args...)
}

// Warn adds a log line for an operator's attention.
func (e Event) Warn(message string, args ...any) Event {
	return e.Log(slog.LevelWarn, message, args...)
}

// Sink receives the events of one agent. It is safe for concurrent use and never waits for a reader.
type Sink struct{ *debug.Recorder }

func New(cluster string) *Sink { return &Sink{debug.NewRecorder("agent", cluster, "")} }

func (s *Sink) Emit(e Event) {
	if ctx := context.Background(); e.message != "" && slog.Default().Enabled(ctx, e.level) {
		// The source of the line is the caller: the log is rate-limited by source.
		var pc [1]uintptr
		runtime.Callers(2, pc[:])
		r := slog.NewRecord(time.Now(), e.level, e.message, pc[0])
		r.Add(e.args...)
		_ = slog.Default().Handler().Handle(ctx, r)
	}
	s.Record(debug.Event{
		Source: e.Cluster, Object: e.Object, Action: e.Action, Detail: e.Detail, ObservedAt: e.ObservedAt,
	})
}
