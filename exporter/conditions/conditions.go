// Package conditions writes the conditions of ServiceExports (KEP-1645) in the exporter's own cluster: Valid, whether
// there is a Service that can be exported; Ready, whether the own broker has taken it, and what other clusters said of
// it; Conflict, in which points other exports of the same name differ.
//
// It polls the catalog and the publishers, writes the status of ServiceExports and nothing else, and writes it when its
// meaning changes. It does not decide what is exported, and knows neither streams nor messages.
//
// Of the exporter's packages it may import catalog.
package conditions

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/mcs"
)

const (
	pollInterval = time.Second
	// unconfirmedFor is how long the own broker must not have answered before that is written: a stream that begins
	// again answers sooner.
	unconfirmedFor = 15 * time.Second
	// writesPerSecond and writesBurst bound the writes of a cluster with many exports.
	writesPerSecond, writesBurst = 20, 100
	// retryInterval is the wait after a write that failed.
	retryInterval = 5 * time.Second
)

// Broker is the publisher to one broker.
type Broker interface {
	// Verdict returns the broker's objection to an object at a revision, empty for none; known is false while the
	// broker has not answered.
	Verdict(key catalog.Key, revision uint64) (objection string, known bool)
	// VerdictVersion changes whenever the result of Verdict or Conflict may change.
	VerdictVersion() uint64
	// Conflict returns the reasons of the condition Conflict, and a sentence.
	Conflict(key catalog.Key) (reasons []string, message string)
}

// Writer writes the conditions of one exporter's ServiceExports.
type Writer struct {
	own     string
	catalog *catalog.Catalog
	brokers func() map[string]Broker
	exports mcs.Resource[*mcsv1beta1.ServiceExport]
	limiter *rate.Limiter
	problem *kube.Problem

	states map[key]*state
	// seen is the version of exports and verdicts that the last pass saw.
	seen uint64
	// pausedUntil is set after a write failed.
	pausedUntil time.Time
}

type key struct{ namespace, name string }

// state is what is known of the conditions of one ServiceExport.
type state struct {
	// current is the meaning of the conditions, unchanged since since; written is the meaning that was written.
	current, written string
	since            time.Time
}

// New makes a writer for the cluster own; brokers returns the publishers by cluster. Nothing is written before Run.
func New(own string, client *mcs.Client, c *catalog.Catalog, brokers func() map[string]Broker,
	log *slog.Logger) *Writer {
	return &Writer{
		own: own, catalog: c, brokers: brokers, exports: client.Exports(),
		limiter: rate.NewLimiter(writesPerSecond, writesBurst), problem: kube.NewProblem(log), states: map[key]*state{},
	}
}

// Problems returns why conditions are not written, a line each.
func (w *Writer) Problems() []string { return w.problem.Lines() }

// Run writes conditions until ctx ends.
func (w *Writer) Run(ctx context.Context) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now := <-tick.C:
			if now.Before(w.pausedUntil) {
				continue
			}
			if err := w.pass(ctx, now); err != nil {
				return err
			}
		}
	}
}

// pass writes what changed. The error is that of ctx.
func (w *Writer) pass(ctx context.Context, now time.Time) error {
	brokers := w.brokers()
	version := w.catalog.OffersVersion()
	for _, b := range brokers {
		version += b.VerdictVersion()
	}
	if version == w.seen && !w.waiting() {
		return nil
	}
	w.seen = version
	there := map[key]bool{}
	failed := ""
	for _, x := range w.catalog.ServiceExports() {
		at := key{x.Namespace, x.Name}
		there[at] = true
		s := w.states[at]
		if s == nil {
			s = &state{}
			w.states[at] = s
		}
		want, known := Of(x, w.own, brokers)
		meaning := meaningOf(x, want)
		if meaning != s.current {
			s.current, s.since = meaning, now
		}
		if s.written == meaning || !known && now.Sub(s.since) < unconfirmedFor {
			continue
		}
		if err := w.limiter.Wait(ctx); err != nil {
			return ctx.Err()
		}
		if err := w.write(ctx, x, want); ctx.Err() != nil {
			return ctx.Err()
		} else if err != nil {
			failed = fmt.Sprintf("the conditions of ServiceExport %s/%s are not written (the component features/mcs has the "+
				"right to): %v", x.Namespace, x.Name, err)
			break
		}
		s.written = meaning
	}
	for at := range w.states {
		if !there[at] {
			delete(w.states, at)
		}
	}
	if w.problem.Set(failed); failed != "" {
		w.pausedUntil = now.Add(retryInterval)
	}
	return nil
}

// waiting reports whether conditions may become due by time alone.
func (w *Writer) waiting() bool {
	for _, s := range w.states {
		if s.written != s.current {
			return true
		}
	}
	return false
}

// write sets the conditions of a ServiceExport; those of other types stay.
func (w *Writer) write(ctx context.Context, x catalog.ServiceExport, want []metav1.Condition) error {
	have, err := w.exports.Get(ctx, x.Namespace, x.Name)
	if apierrors.IsNotFound(err) || err == nil && have.UID != x.UID {
		return nil // it was deleted; of a new one the catalog knows soon
	}
	if err != nil {
		return err
	}
	next := have.DeepCopy()
	changed := false
	for _, c := range want {
		changed = meta.SetStatusCondition(&next.Status.Conditions, c) || changed
	}
	if !slices.ContainsFunc(want, func(c metav1.Condition) bool {
		return c.Type == string(mcsv1beta1.ServiceExportConditionConflict)
	}) && !valid(x) {
		changed = meta.RemoveStatusCondition(&next.Status.Conditions,
			string(mcsv1beta1.ServiceExportConditionConflict)) || changed
	}
	if !changed {
		return nil
	}
	if _, err = w.exports.UpdateStatus(ctx, next); apierrors.IsNotFound(err) {
		return nil
	}
	return err // after a conflict the next pass reads again
}

func valid(x catalog.ServiceExport) bool { return x.Valid == mcsv1beta1.ServiceExportReasonValid }

// Of returns the conditions of a ServiceExport in the cluster own. known is false while the own broker has not
// answered; conditions that depend on it are then left out, or pending.
func Of(x catalog.ServiceExport, own string, brokers map[string]Broker) (all []metav1.Condition, known bool) {
	add := func(t mcsv1beta1.ServiceExportConditionType, status bool, reason, message string) {
		c := metav1.Condition{Type: string(t), Status: metav1.ConditionFalse, Reason: reason, Message: truncate(message),
			ObservedGeneration: x.Generation}
		if status {
			c.Status = metav1.ConditionTrue
		}
		all = append(all, c)
	}
	if !valid(x) {
		add(mcsv1beta1.ServiceExportConditionValid, false, string(x.Valid), x.Reason)
		add(mcsv1beta1.ServiceExportConditionReady, false, string(mcsv1beta1.ServiceExportReasonPending),
			"nothing is exported: see the condition Valid")
		return all, true
	}
	add(mcsv1beta1.ServiceExportConditionValid, true, string(mcsv1beta1.ServiceExportReasonValid),
		"the Service can be exported")
	ready := func(status bool, reason mcsv1beta1.ServiceExportConditionReason, message string) {
		add(mcsv1beta1.ServiceExportConditionReady, status, string(reason), message)
	}
	broker := brokers[own]
	switch {
	case broker == nil:
		ready(false, mcsv1beta1.ServiceExportReasonFailed,
			"the exporter does not publish to the broker of its own cluster: add it to brokers in the exporter's configuration")
		return all, true
	case x.Offer == nil || len(x.Offer.To) == 0:
		reason := "the exporter has not read the Service yet"
		if x.Offer != nil {
			reason = "the Service is not exported: " + x.Offer.Reason
		}
		ready(false, mcsv1beta1.ServiceExportReasonFailed, reason)
		return all, x.Offer != nil
	}
	objection, known := broker.Verdict(x.Offer.Key(), x.Offer.Revision)
	switch {
	case !known:
		ready(false, mcsv1beta1.ServiceExportReasonPending, "the broker of the own cluster has not confirmed it yet")
		return all, false
	case objection != "":
		ready(false, mcsv1beta1.ServiceExportReasonFailed, "the broker of the own cluster: "+objection)
	default:
		ready(true, mcsv1beta1.ServiceExportReasonExported, others(x, own, brokers))
	}
	if reasons, message := broker.Conflict(x.Offer.Key()); len(reasons) > 0 {
		add(mcsv1beta1.ServiceExportConditionConflict, true, strings.Join(reasons, ","), message)
	} else {
		add(mcsv1beta1.ServiceExportConditionConflict, false, string(mcsv1beta1.ServiceExportReasonNoConflicts),
			"no export of another cluster differs")
	}
	return all, true
}

// others says which other clusters have taken a Service, which have not answered, and which refuse it and why.
func others(x catalog.ServiceExport, own string, brokers map[string]Broker) string {
	var accepted, unconfirmed, parts []string
	for _, cluster := range x.Offer.To {
		if cluster == own {
			continue
		}
		var objection string
		known := false
		if b := brokers[cluster]; b != nil {
			objection, known = b.Verdict(x.Offer.Key(), x.Offer.Revision)
		}
		switch {
		case !known:
			unconfirmed = append(unconfirmed, cluster)
		case objection != "":
			parts = append(parts, fmt.Sprintf("cluster %s: %s", cluster, objection))
		default:
			accepted = append(accepted, cluster)
		}
	}
	if len(unconfirmed) > 0 {
		parts = append([]string{"not confirmed yet by " + strings.Join(unconfirmed, ", ")}, parts...)
	}
	if len(accepted) > 0 {
		parts = append([]string{"exported to " + strings.Join(accepted, ", ")}, parts...)
	}
	if len(parts) == 0 {
		text := "exported to no other cluster"
		if x.Offer.Reason != "" {
			text += ": " + x.Offer.Reason
		}
		parts = append(parts, text)
	}
	if x.Offer.IgnoredSettings != "" {
		parts = append(parts, x.Offer.IgnoredSettings)
	}
	return strings.Join(parts, "; ")
}

// meaningOf is equal for conditions that mean the same for the same object.
func meaningOf(x catalog.ServiceExport, all []metav1.Condition) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d", x.UID, x.Generation)
	for _, c := range all {
		fmt.Fprintf(&b, "\n%s %s %s %s", c.Type, c.Status, c.Reason, c.Message)
	}
	return b.String()
}

// maxMessage is below the limit of a condition's message, 32,768 characters.
const maxMessage = 2048

func truncate(text string) string {
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "…"
	}
	return text
}
