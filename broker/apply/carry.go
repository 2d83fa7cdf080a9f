package apply

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube/reconcile"
)

// reconcile makes the object of one name as desired, as the machine decides. It returns reconcile.ErrIdle if nothing is
// to be done.
func (o *Objects[T]) reconcile(ctx context.Context, name string) error {
	o.connMu.RLock()
	defer o.connMu.RUnlock()
	if !o.Synced() {
		return reconcile.ErrIdle // all names are queued again once the list is complete
	}
	if wait := o.machine.Wait(time.Now(), name, func() bool { return o.urgent(name) }); wait > 0 {
		o.loop.Delay(name, wait, reconcile.Reason(writes.Gathering))
		return reconcile.ErrIdle
	}
	if _, expired := o.machine.Expire(time.Now(), name); expired {
		o.observe(name)
	}
	seen := o.machine.Begin(time.Now(), name)
	answer := o.desired.Start(name, seen.Owner)
	step := o.machine.Decide(time.Now(), seen, answer)
	o.follow(name, step)
	if step.Write == nil {
		return reconcile.ErrIdle
	}
	return o.write(ctx, step.Write)
}

// urgent reports whether a change of the object under a name must be written without pacing.
func (o *Objects[T]) urgent(name string) bool {
	have, there := o.Newest(name)
	return o.desired.IsUrgent(o.kind.Kind, name, have, there)
}

// write sends the requests of a write, and reports the result.
func (o *Objects[T]) write(ctx context.Context, w *writes.Write[T]) error {
	var step writes.Step[T]
	var err error
	for sent := w; sent != nil; sent = step.Write {
		var object T
		object, err = o.send(ctx, sent)
		step = o.machine.Settle(time.Now(), sent, object, err)
	}
	o.observe(w.Name)
	if err != nil && ctx.Err() != nil {
		return err
	}
	o.follow(w.Name, step)
	o.report(w, step)
	if step.Result == writes.Conflict {
		return reconcile.ErrIdle
	}
	return step.Err
}

func (o *Objects[T]) send(ctx context.Context, w *writes.Write[T]) (object T, err error) {
	switch w.Request {
	case writes.SendCreate:
		if o.blocked != nil {
			if err := o.blocked(ctx, w.Object); err != nil {
				return object, writes.NotSent{Err: err}
			}
		}
		return o.client.Create(ctx, w.Object)
	case writes.SendUpdate:
		w.Object.SetManagedFields(nil) // keep the apiserver's managedFields
		return o.client.Update(ctx, w.Object)
	case writes.SendDelete:
		return w.Object, o.client.Delete(ctx, w.Object)
	case writes.SendRead:
		return o.client.Get(ctx, w.Object)
	}
	foreign := writes.NotOurs{Kind: o.kind.Name, Name: w.Name}
	if o.adopt == nil {
		return object, foreign
	}
	object, ok, hint, err := o.adopt(ctx, w.Object)
	if err == nil && !ok {
		foreign.Hint = hint
		return object, foreign
	}
	return object, err
}

// follow carries out what a step asks for beside the write: metrics, Events and records.
func (o *Objects[T]) follow(name string, step writes.Step[T]) {
	if step.Again {
		o.loop.Delay(name, step.After, reconcile.Reason(step.Why))
	}
	if step.DelayedOf != "" {
		o.options.Metrics.delayed.WithLabelValues(step.DelayedOf, string(o.kind.Name)).Inc()
	}
	if c := step.Contest; c != nil && c.Contested() {
		o.options.Events.WarnOf("", "Contested "+string(o.kind.Name)+" "+name+" "+c.Manager, finding.Contested,
			fmt.Sprintf("%s %s: %s", o.kind.Name, name, c.Problem()))
	}
}

func (o *Objects[T]) report(w *writes.Write[T], step writes.Step[T]) {
	cluster, op := w.Cluster(), string(w.Op)
	o.options.Metrics.Write(o.kind.Name, op, string(step.Result))
	record := debug.Event{Source: cluster, Object: string(o.kind.Name) + " " + w.Name, Action: op,
		ObservedAt: w.Change.ObservedAt}
	switch step.Result {
	case writes.Done:
		if w.Change.Cluster != "" && !w.Change.ObservedAt.IsZero() {
			o.options.Metrics.propagated(w.Change.Cluster, o.kind.Name, time.Since(w.Change.ObservedAt))
		}
		record.Detail = "written to the apiserver"
		o.options.Recorder.Record(record)
		o.reportRestored(w.Name, step)
		return
	case writes.Conflict:
		return
	case writes.Foreign:
		o.options.Events.Warn(cluster, finding.NameTaken, step.Err.Error())
	default:
		cause, note := CauseOf(step.Err), fmt.Sprintf("%s of %s %s: %v", op, o.kind.Name, w.Name, step.Err)
		switch {
		case cause.All: // the apiserver would refuse an Event too
		case cause.Shared:
			o.options.Events.WarnOf(cluster, "WriteFailed "+string(o.kind.Name)+" "+cause.Name, finding.WriteFailed, note)
		default:
			o.options.Events.Warn(cluster, finding.WriteFailed, note)
		}
	}
	record.Action, record.Detail = op+"-failed", step.Err.Error()
	o.options.Recorder.Record(record)
}

func (o *Objects[T]) reportRestored(name string, step writes.Step[T]) {
	if c := step.Restored; c != nil {
		o.options.Metrics.restored.WithLabelValues(string(o.kind.Name)).Inc()
		o.loop.Warn(name, "restored an object that another writer changed or deleted",
			"name", name, "kind", o.kind.Name, "manager", c.Manager, "fields", c.Fields, "times", c.Times)
		about := fmt.Sprintf("Restored %s %s %s %t", o.kind.Name, name, c.Manager, c.Missing)
		o.options.Events.WarnOf("", about, finding.Restored, fmt.Sprintf(
			"%s %s: %s changed %s; the broker has restored it, as it does with all that it writes",
			o.kind.Name, name, c.Manager, strings.Join(c.Fields, ", ")))
	}
}
