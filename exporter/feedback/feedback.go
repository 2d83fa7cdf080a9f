// Package feedback tells those who offer a Service what became of it: Events on the Service itself, in the cluster that it is in. So
// nobody needs access to another cluster to find out whether it is offered, to whom, and if not, why.
//
// It looks at the catalog and at the brokers every two seconds, and writes nothing but Events and, where that is asked for, one annotation. An Event is written when what it says
// changes, and not again by an exporter that restarts within the hour that Kubernetes keeps it. It does not decide what is exported, and
// knows neither streams nor messages.
package feedback

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
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
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
)

const (
	lookEvery = 2 * time.Second
	// settles is how long all has to be as it is until it is told that all is well: what a broker has against a Service comes with its
	// answer to the next heartbeat.
	settles = 6 * time.Second
	// patience is for how long a cluster that has not confirmed a Service is waited for, until that is told.
	patience = 30 * time.Second
	// Events of a cluster with many Services must not fill etcd.
	eventsPerSecond, eventsBurst = 5, 50
	// refusedAgain is when it is tried again where the right to write Events is missing.
	refusedAgain = 10 * time.Minute
	maxNote      = 1024 // that of the API
)

// The reasons of Events.
const (
	Offered    = "Offered"
	NotOffered = "NotOffered"
	Refused    = "Refused"
)

// Broker is one to which Services are published.
type Broker interface {
	// Taken says whether the broker holds an object up to a revision, and what it has against it, empty for nothing; settled is
	// false while that is not known.
	Taken(key catalog.Key, revision uint64, now time.Time) (against string, settled bool)
	// Standing changes whenever Taken may say something else.
	Standing() uint64
}

// Feedback writes the Events of one exporter.
type Feedback struct {
	// Events and Annotates say what is written; they are set before Run.
	Events, Annotates bool

	kube     kubernetes.Interface
	catalog  *catalog.Catalog
	brokers  map[string]Broker
	limiter  *rate.Limiter
	instance string
	written  *prometheus.CounterVec
	log      *slog.Logger

	services map[service]*state
	// seen is what there was when it was last looked.
	seen uint64
	// silent and unmarked are until when no Event and no annotation is written, as there is no right to.
	silent, unmarked time.Time
	// stale are the Services that may bear the annotation and are not offered any more, and since when.
	stale map[service]time.Time
}

type service struct{ namespace, name string }

// state is what is known of one Service.
type state struct {
	// said is what the last Event tells, marked what the annotation says, and is what is so since.
	said, marked, is string
	since            time.Time
	// verdicts are what clusters have last said.
	verdicts map[string]verdict
}

type verdict struct {
	revision uint64
	against  string
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *prometheus.CounterVec {
	m := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "semaphore_exporter_events_total", Help: "Events on Services that are offered: written, repeated (there already) or failed.",
	}, []string{"result"})
	for _, result := range []string{"written", "repeated", "failed"} {
		m.WithLabelValues(result)
	}
	reg.MustRegister(m)
	return m
}

// New makes the feedback of an exporter that publishes to brokers, by their clusters. Nothing is written before Run.
func New(kube kubernetes.Interface, c *catalog.Catalog, brokers map[string]Broker, written *prometheus.CounterVec, log *slog.Logger) *Feedback {
	instance, err := os.Hostname()
	if err != nil || instance == "" {
		instance = "semaphore-exporter"
	}
	return &Feedback{
		kube: kube, catalog: c, brokers: brokers, limiter: rate.NewLimiter(eventsPerSecond, eventsBurst), instance: instance,
		written: written, log: log, services: map[service]*state{}, stale: map[service]time.Time{}, Events: true,
	}
}

// Run writes Events until ctx ends.
func (f *Feedback) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	listed := !f.Annotates
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now := <-tick.C:
			if !listed {
				listed = f.list(ctx, now)
			}
			for _, e := range f.look(now) {
				if err := f.write(ctx, e); err != nil {
					return err
				}
			}
			if err := f.sweep(ctx, now); err != nil {
				return err
			}
		}
	}
}

// Event is one that is due.
type Event struct {
	offer        *catalog.Offer
	reason, note string
	warning      bool
}

// look takes what is so now, and returns the Events that are due.
func (f *Feedback) look(now time.Time) []Event {
	seen := f.catalog.OffersVersion()
	for _, b := range f.brokers {
		seen += b.Standing()
	}
	if seen == f.seen && !f.waiting() {
		return nil
	}
	f.seen = seen
	offers := f.catalog.Offers()
	there := make(map[service]bool, len(offers))
	var due []Event
	for i := range offers {
		o := &offers[i]
		at := service{o.Namespace, o.Name}
		there[at] = true
		s := f.services[at]
		if s == nil {
			s = &state{verdicts: map[string]verdict{}}
			f.services[at] = s
		}
		e, wait := f.tells(o, s, now)
		text := string(o.UID) + " " + e.reason + " " + e.note
		if text != s.is {
			s.is, s.since = text, now
		}
		if f.owes(s) && now.Sub(s.since) >= wait {
			due = append(due, e)
		}
	}
	for at := range f.services {
		if !there[at] {
			if f.Annotates {
				f.stale[at] = now.Add(-patience)
			}
			delete(f.services, at)
		}
	}
	// What is wrong goes first.
	slices.SortStableFunc(due, func(a, b Event) int {
		switch {
		case a.warning == b.warning:
			return 0
		case a.warning:
			return -1
		}
		return 1
	})
	return due
}

// waiting says whether time alone may make an Event due.
func (f *Feedback) waiting() bool {
	for _, s := range f.services {
		if f.owes(s) {
			return true
		}
	}
	return false
}

// owes says whether something is to be written of a Service.
func (f *Feedback) owes(s *state) bool {
	return f.Events && s.is != s.said || f.Annotates && s.is != s.marked
}

// tells is what there is to tell of a Service, and for how long that has to be so before it is told.
func (f *Feedback) tells(o *catalog.Offer, s *state, now time.Time) (e Event, wait time.Duration) {
	e.offer = o
	if len(o.To) == 0 {
		e.reason, e.note, e.warning = NotOffered, "it is not offered to other clusters: "+o.Why, true
		return e, 0
	}
	var taken, waits, against []string
	for _, cluster := range o.To {
		if text, settled := f.brokers[cluster].Taken(o.Key(), o.Revision, now); settled {
			s.verdicts[cluster] = verdict{o.Revision, text}
		}
		v, known := s.verdicts[cluster]
		switch {
		case !known:
			waits = append(waits, cluster)
		case v.against != "":
			against = append(against, fmt.Sprintf("cluster %s: %s", cluster, v.against))
		default:
			taken = append(taken, cluster)
		}
	}
	var parts []string
	e.reason, wait = Offered, settles
	if len(against) > 0 {
		e.reason, e.warning, wait = Refused, true, 0
		parts = append(parts, against...)
	}
	if len(taken) > 0 {
		parts = append(parts, fmt.Sprintf("offered to %s %s", strings.Join(taken, ", "), as(o)))
	}
	if len(waits) > 0 {
		wait = patience
		parts = append(parts, fmt.Sprintf("not confirmed yet by %s", strings.Join(waits, ", ")))
	}
	if o.Unheeded != "" {
		e.warning = true
		parts = append(parts, o.Unheeded)
	}
	e.note = strings.Join(parts, "; ")
	return e, wait
}

func as(o *catalog.Offer) string {
	switch {
	case o.Mirror && o.Global:
		return "as a mirror and as part of the global service"
	case o.Global:
		return "as part of the global service"
	}
	return "as a mirror"
}

// write writes what is due of a Service. The error is that of ctx.
func (f *Feedback) write(ctx context.Context, e Event) error {
	s := f.services[service{e.offer.Namespace, e.offer.Name}]
	if f.Events && s.is != s.said && !time.Now().Before(f.silent) {
		if err := f.tell(ctx, e, s); err != nil {
			return err
		}
	}
	if f.Annotates && s.is != s.marked && !time.Now().Before(f.unmarked) {
		text := condition(e)
		if written, err := f.annotate(ctx, e.offer.Namespace, e.offer.Name, string(e.offer.UID), &text); err != nil {
			return err
		} else if written {
			s.marked = s.is
		}
	}
	return nil
}

// tell writes an Event. The error is that of ctx.
func (f *Feedback) tell(ctx context.Context, e Event, s *state) error {
	if err := f.limiter.Wait(ctx); err != nil {
		return ctx.Err()
	}
	_, err := f.kube.EventsV1().Events(e.offer.Namespace).Create(ctx, f.event(e, time.Now()), metav1.CreateOptions{FieldManager: "semaphore-exporter"})
	result := "written"
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case apierrors.IsAlreadyExists(err):
		result, err = "repeated", nil
	case apierrors.IsForbidden(err):
		f.silent = time.Now().Add(refusedAgain)
	case apierrors.IsNotFound(err):
		err = nil // its namespace has gone
	}
	if err != nil {
		f.written.WithLabelValues("failed").Inc()
		f.log.Warn("cannot write an Event on a Service that is offered", "namespace", e.offer.Namespace, "service", e.offer.Name, "reason", e.reason, "error", err)
		return nil // it stays due
	}
	f.written.WithLabelValues(result).Inc()
	s.said = s.is
	return nil
}

// cut is a text with the length that the API of Events allows.
func cut(note string) string {
	if len(note) > maxNote {
		note = strings.ToValidUTF8(note[:maxNote-len("…")], "") + "…"
	}
	return note
}

// event is named after what it says: another exporter of the cluster that says the same finds it there.
func (f *Feedback) event(e Event, now time.Time) *eventsv1.Event {
	note := cut(e.note)
	sum := sha256.Sum256([]byte(string(e.offer.UID) + "\x00" + e.reason + "\x00" + e.note))
	kind := corev1.EventTypeNormal
	if e.warning {
		kind = corev1.EventTypeWarning
	}
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.offer.Namespace, Name: e.offer.Name + "." + hex.EncodeToString(sum[:8])},
		EventTime:  metav1.NewMicroTime(now),
		Type:       kind,
		Reason:     e.reason,
		Action:     "Export",
		Note:       note,
		Regarding: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Service", Namespace: e.offer.Namespace, Name: e.offer.Name, UID: e.offer.UID,
		},
		ReportingController: "semaphore.uw.io/exporter",
		ReportingInstance:   f.instance,
	}
}
