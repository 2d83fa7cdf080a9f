package report

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/waiting"
)

// This file reports on each offered Service whether it is exported, to which clusters, and if not, why: as Events on
// the Service in its own cluster and, if configured, in one annotation. Its owner needs no access to another cluster.
//
// It writes an Event when its text changes, also back to an earlier one. An exporter that restarts within an hour, for
// which Kubernetes keeps Events, does not repeat it.

const (
	// PollInterval and SettlePeriod are the defaults of Feedback's Poll and Settle.
	PollInterval, SettlePeriod = 2 * time.Second, 6 * time.Second
	// confirmTimeout is how long the report of a status waits for clusters that have not confirmed a Service.
	confirmTimeout = 30 * time.Second
	// Events of a cluster with many Services must not fill etcd.
	eventsPerSecond, eventsBurst = 5, 50
	// forbiddenRetry is the wait after the right to write was missing.
	forbiddenRetry = 10 * time.Minute
	// maxWrites is how many Services are written before it is looked again which ones are due.
	maxWrites = 10
	maxNote   = 1024 // the limit of the Kubernetes API, in bytes
)

// ofEvents spaces the writes of one Service: a broker of another cluster that changes its mind again and again must not
// use up what all Services share.
var ofEvents = waiting.Rule{Free: 5, Least: 10 * time.Second, Most: 5 * time.Minute, Calm: 10 * time.Minute}

type Feedback struct {
	// Events and Annotates select the writes; they must be set before Run.
	Events, Annotates bool
	// Poll is the interval at which catalog and publishers are read. Settle is how long a positive status must be
	// unchanged before it is reported: a broker may have written nothing yet when it answers the first heartbeat. Both
	// must be set before Run.
	Poll, Settle time.Duration
	// Complete reports whether the catalog has all Services. Before that, a Service that the catalog lacks may be offered,
	// and keeps its annotation. It must be set before Run.
	Complete func() bool

	kube     kubernetes.Interface
	catalog  *catalog.Catalog
	brokers  func() map[string]Broker
	limiter  *rate.Limiter
	instance string
	written  *prometheus.CounterVec
	log      *slog.Logger

	services map[key]*eventState
	// seen are the versions of offers and verdicts at the last pass.
	seen map[string]uint64
	// noEventsUntil and noAnnotationsUntil are set after the right to write was missing.
	noEventsUntil, noAnnotationsUntil time.Time
	// logged are the errors that were logged last, of Events and of annotations: a failed write is tried again for each
	// Service.
	logged struct{ events, annotations string }
	// stale are the Services that may have the annotation and are not offered, with the attempts to remove it.
	stale map[key]waiting.Repeats
}

type key struct{ namespace, name string }

// eventState is the state of one Service, and of a later one of its name.
type eventState struct {
	uid types.UID
	// writtenEvent and writtenAnnotation are the texts that were written, current is the present text, unchanged
	// since.
	writtenEvent, writtenAnnotation, current string
	since                                    time.Time
	writes                                   waiting.Repeats
	// verdicts are the last known objections of the clusters to which it is offered, empty for none.
	verdicts map[string]string
}

func NewFeedbackMetrics(reg prometheus.Registerer) *prometheus.CounterVec {
	m := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "semaphore_exporter_events_total",
		Help: "Events on offered Services: written, repeated (it existed already) or failed.",
	}, []string{"result"})
	for _, result := range []string{"written", "repeated", "failed"} {
		m.WithLabelValues(result)
	}
	reg.MustRegister(m)
	return m
}

// NewFeedback makes the feedback of an exporter; brokers returns its publishers, by cluster. Nothing is written before
// Run.
func NewFeedback(kube kubernetes.Interface, c *catalog.Catalog, brokers func() map[string]Broker,
	written *prometheus.CounterVec, log *slog.Logger) *Feedback {
	instance, err := os.Hostname()
	if err != nil || instance == "" {
		instance = "semaphore-exporter"
	}
	return &Feedback{
		kube: kube, catalog: c, brokers: brokers, limiter: rate.NewLimiter(eventsPerSecond, eventsBurst), instance: instance,
		written: written, log: log, services: map[key]*eventState{}, stale: map[key]waiting.Repeats{}, Events: true,
		Poll: PollInterval, Settle: SettlePeriod,
	}
}

// Run writes Events and annotations until ctx ends, and returns ctx's error.
func (f *Feedback) Run(ctx context.Context) error {
	tick := time.NewTicker(f.Poll)
	defer tick.Stop()
	var notBefore time.Time // of the next pass, as that of Conditions
	listed := !f.Annotates
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now := <-tick.C:
			if now.Before(notBefore) {
				continue
			}
			if !listed {
				listed = f.listAnnotated(ctx)
			}
			// A catalog that is complete now has its Services in this pass.
			complete := f.Complete()
			began := time.Now()
			due := f.dueEvents(now)
			notBefore = began.Add(min(share*time.Since(began), maxWait))
			for _, e := range due[:min(len(due), maxWrites)] {
				if err := f.write(ctx, e); err != nil {
					return err
				}
			}
			if complete {
				if err := f.removeStaleAnnotations(ctx, now); err != nil {
					return err
				}
			}
		}
	}
}

type event struct {
	offer  *catalog.Offer
	reason finding.Code
	note   string
}

// dueEvents reads the current state and returns the Events to write.
func (f *Feedback) dueEvents(now time.Time) []event {
	brokers := f.brokers()
	seen := versions(f.catalog, brokers)
	if maps.Equal(seen, f.seen) && !f.waiting() {
		return nil
	}
	f.seen = seen
	offers := f.catalog.Offers()
	offered := make(map[key]bool, len(offers))
	var due []event
	for i := range offers {
		o := &offers[i]
		at := key{o.Namespace, o.Name}
		offered[at] = true
		s := f.services[at]
		if s == nil {
			s = &eventState{verdicts: map[string]string{}}
			f.services[at] = s
		}
		if s.uid != o.UID {
			s.uid = o.UID
			clear(s.verdicts) // they are about an earlier Service of the name
		}
		e, wait := f.statusOf(brokers, o, s)
		text := string(o.UID) + " " + string(e.reason) + " " + e.note
		if text != s.current {
			s.current, s.since = text, now
		}
		if event, annotation := f.mayWrite(s, now); (event || annotation) && now.Sub(s.since) >= wait &&
			!now.Before(s.writes.Next(ofEvents)) {
			due = append(due, e)
		}
	}
	for at := range f.services {
		if !offered[at] {
			if f.Annotates {
				f.stale[at] = waiting.Repeats{}
			}
			delete(f.services, at)
		}
	}
	// Those that are rarely written come first, among them warnings.
	rank := func(e event) (writes, normal int) {
		if e.reason.Level() == finding.OK {
			normal = 1
		}
		return f.services[key{e.offer.Namespace, e.offer.Name}].writes.Times, normal
	}
	slices.SortStableFunc(due, func(a, b event) int {
		writesA, normalA := rank(a)
		writesB, normalB := rank(b)
		return cmp.Or(writesA-writesB, normalA-normalB)
	})
	return due
}

// waiting reports whether an Event may become due by time alone.
func (f *Feedback) waiting() bool {
	for _, s := range f.services {
		if f.needsWrite(s) {
			return true
		}
	}
	return false
}

func (f *Feedback) needsWrite(s *eventState) bool {
	return f.Events && s.current != s.writtenEvent || f.Annotates && s.current != s.writtenAnnotation
}

// mayWrite reports what of the current text is not written yet and may be: the right to was not missing lately.
func (f *Feedback) mayWrite(s *eventState, now time.Time) (event, annotation bool) {
	return f.Events && s.current != s.writtenEvent && !now.Before(f.noEventsUntil),
		f.Annotates && s.current != s.writtenAnnotation && !now.Before(f.noAnnotationsUntil)
}

// statusOf returns the status of a Service, and how long it must be unchanged before it is written.
func (f *Feedback) statusOf(brokers map[string]Broker, o *catalog.Offer, s *eventState) (e event, wait time.Duration) {
	e.offer = o
	maps.DeleteFunc(s.verdicts, func(cluster, _ string) bool { return !slices.Contains(o.To, cluster) })
	withheld := "it is not offered to other clusters: " + o.Reason
	if len(o.To) == 0 {
		e.reason, e.note = finding.NotOffered, withheld
		return e, 0
	}
	accepted, unconfirmed, objections := answers(o.To, "", func(cluster string) (objection string, known bool) {
		if b := brokers[cluster]; b != nil { // nil while the cluster is added or removed
			if text, known := b.Verdict(o.Key(), o.Revision); known {
				s.verdicts[cluster] = text
			}
		}
		objection, known = s.verdicts[cluster]
		return objection, known
	})
	var parts []string
	e.reason, wait = finding.Offered, f.Settle
	switch {
	case len(objections) > 0:
		e.reason, wait = finding.Refused, 0
		parts = append(parts, objections...)
	case o.Reason != "":
		e.reason, wait = finding.NotOffered, 0
	case len(accepted) == 0:
		e.reason = finding.NotConfirmed
	}
	if o.Reason != "" { // the answers are those of the own cluster
		parts, accepted, unconfirmed = append(parts, withheld), nil, nil
	}
	if len(accepted) > 0 {
		parts = append(parts, fmt.Sprintf("offered to %s %s", strings.Join(accepted, ", "), exportedAs(o)))
	}
	if len(unconfirmed) > 0 {
		wait = confirmTimeout
		parts = append(parts, fmt.Sprintf("not confirmed yet by %s", strings.Join(unconfirmed, ", ")))
	}
	if o.IgnoredSettings != "" {
		if e.reason == finding.Offered {
			e.reason = finding.InvalidServiceSetting
		}
		parts = append(parts, o.IgnoredSettings)
	}
	e.note = strings.Join(parts, "; ")
	return e, wait
}

func exportedAs(o *catalog.Offer) string {
	switch {
	case o.Mirror && o.Global:
		return "as a mirror and as part of the global service"
	case o.Global:
		return "as part of the global service"
	case o.MultiCluster && !o.Mirror:
		return "by its ServiceExport"
	}
	return "as a mirror"
}

// write writes the status of a Service. The error is that of ctx.
func (f *Feedback) write(ctx context.Context, e event) error {
	s, now := f.services[key{e.offer.Namespace, e.offer.Name}], time.Now()
	event, annotation := f.mayWrite(s, now)
	if !event && !annotation {
		return nil // the right to is missing since this pass began
	}
	s.writes.Add(ofEvents, now)
	if event {
		if err := f.writeEvent(ctx, e, s); err != nil {
			return err
		}
	}
	if annotation {
		text := condition(e)
		if written, err := f.annotate(ctx, e.offer.Namespace, e.offer.Name, string(e.offer.UID), &text); err != nil {
			return err
		} else if written {
			s.writtenAnnotation = s.current
		}
	}
	return nil
}

// writeEvent writes an Event. The error is that of ctx.
func (f *Feedback) writeEvent(ctx context.Context, e event, s *eventState) error {
	err := f.create(ctx, e, time.Time{})
	if apierrors.IsAlreadyExists(err) && s.writtenEvent != "" {
		err = f.create(ctx, e, s.since) // it was so before, and something else in between
	}
	result := "written"
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case apierrors.IsAlreadyExists(err):
		result, err = "repeated", nil
	case apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		err = nil // the namespace was deleted, or its deletion began
	case lacksRight(err):
		f.noEventsUntil = time.Now().Add(forbiddenRetry)
	}
	if err != nil {
		f.written.WithLabelValues("failed").Inc()
		if reason := reasonOf(err); reason != f.logged.events {
			f.log.Warn("cannot write an Event on a Service that is offered; the exporter retries", "service",
				e.offer.Name, "namespace", e.offer.Namespace, "reason", e.reason, "error", err)
			f.logged.events = reason
		}
		return nil // it remains due
	}
	f.logged.events = ""
	f.written.WithLabelValues(result).Inc()
	s.writtenEvent = s.current
	return nil
}

// lacksRight tells a missing right, which concerns all Services, from the denial of one by a quota or a policy, which
// is Forbidden, too.
func lacksRight(err error) bool {
	return apierrors.IsForbidden(err) && kube.MissingRight.MatchString(err.Error())
}

// create creates an Event; again is when its text became the Service's status once more, zero for the first time.
func (f *Feedback) create(ctx context.Context, e event, again time.Time) error {
	if err := f.limiter.Wait(ctx); err != nil {
		return err
	}
	_, err := f.kube.EventsV1().Events(e.offer.Namespace).Create(ctx, f.event(e, time.Now(), again),
		metav1.CreateOptions{FieldManager: "semaphore-exporter"})
	return err
}

// reasonOf is what several failed writes have in common: the apiserver's reason, or the text of another error.
func reasonOf(err error) string {
	return cmp.Or(string(apierrors.ReasonForError(err)), err.Error())
}

// truncateEvent makes a note within the limit of the Events API of a text that may quote another cluster.
func truncateEvent(note string) string { return finding.CleanTo(note, maxNote) }

// event returns an Event with a name derived from its text: another exporter of the cluster with the same text finds
// that it exists. again is as for create.
func (f *Feedback) event(e event, now, again time.Time) *eventsv1.Event {
	note := truncateEvent(e.note)
	id := string(e.offer.UID) + "\x00" + string(e.reason) + "\x00" + e.note
	if !again.IsZero() {
		id += "\x00" + again.Format(time.RFC3339Nano)
	}
	sum := sha256.Sum256([]byte(id))
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.offer.Namespace, Name: e.offer.Name + "." + hex.EncodeToString(sum[:8])},
		EventTime:  metav1.NewMicroTime(now),
		Type:       e.reason.EventType(),
		Reason:     string(e.reason),
		Action:     "Export",
		Note:       note,
		Regarding: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Service", Namespace: e.offer.Namespace, Name: e.offer.Name, UID: e.offer.UID,
		},
		ReportingController: "semaphore.uw.io/exporter",
		ReportingInstance:   f.instance,
	}
}
