package report

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// This file writes Kubernetes Events about what operators and users should know, with a budget for each remote.
//
// It owns the budgets and the recently written Events. Its input is a reason and a sentence; its output are Events on
// the namespace of the mirrors, and on Services whose own names lead to other clusters.

const (
	// repeatAfter is the least time between two Events of one topic.
	repeatAfter = 30 * time.Minute
	// retryAfter is the wait of a remote's Events after one of them could not be written.
	retryAfter = 10 * time.Second
	// A remote that gets everything wrong must not fill etcd with Events, nor delay those of others: each remote has a
	// budget of its own, and so have Events of no remote. Events above the budget wait.
	eventsPerSecond, eventsBurst = 0.5, 20
	// maxWaiting bounds the waiting Events of a remote; the status has the same information.
	maxWaiting   = 200
	maxEventNote = 1024 // the bound of the API
	// maxWritten bounds the remembered topics of a remote.
	maxWritten = 2_000
)

// Events writes Kubernetes Events (events.k8s.io/v1) on the namespace of the mirrors, where users look for the state of
// their services. It does not use client-go's recorder, which merges all Events with the same reason on the same object
// into one series, and keeps only the first note.
type Events struct {
	kube      kubernetes.Interface
	namespace string
	results   *prometheus.CounterVec
	log       *slog.Logger
	instance  string
	// perSecond and burst are the budget of each remote.
	perSecond rate.Limit
	burst     int
	news      chan struct{}
	// room, if not nil, is called when there is room for Events that were not accepted.
	room func()

	mu sync.Mutex
	// budgets are by remote; "" is for Events of no remote.
	budgets map[string]*budget
}

type budget struct {
	limiter *rate.Limiter
	// waiting are the Events to be written, in order, and asked are their topics.
	waiting []pendingEvent
	asked   map[string]bool
	// refused is set after an Event was not accepted, until there is room again.
	refused bool
	// paused is until when no Event is written, after one could not be.
	paused time.Time
	// written is when an Event was last written, by topic.
	written map[string]time.Time
}

type pendingEvent struct {
	cluster, topic string
	event          *eventsv1.Event
	failed         bool
}

// NewEvents returns a writer of Events on namespace; Run writes them. Each of remotes has a budget.
func NewEvents(kube kubernetes.Interface, namespace string, remotes []string, reg prometheus.Registerer,
	log *slog.Logger) *Events {
	instance, err := os.Hostname()
	if err != nil || instance == "" {
		instance = naming.ManagedByBroker
	}
	e := &Events{
		kube: kube, namespace: namespace, log: log,
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "semaphore_broker_events_total",
			Help: "Kubernetes Events about refusals, collisions and interference: written, suppressed (written recently or " +
				"waiting, or too many of a remote wait), failed.",
		}, []string{"result"}),
		perSecond: eventsPerSecond, burst: eventsBurst,
		instance: instance, news: make(chan struct{}, 1),
	}
	e.Follow(remotes)
	reg.MustRegister(e.results)
	return e
}

// WhenRoom sets the function that is called when there is room for Events that were not accepted. It must be called
// before Run.
func (e *Events) WhenRoom(f func()) { e.room = f }

// Follow replaces the remotes with a budget. It drops the waiting Events of remotes that are no longer configured.
func (e *Events) Follow(remotes []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.budgets
	e.budgets = map[string]*budget{"": was[""]}
	for _, remote := range remotes {
		e.budgets[remote] = was[remote]
	}
}

// Warn queues a warning about a remote; "" for none. reason is one word in CamelCase, note a sentence. Warn does not
// block. It does not repeat a note within repeatAfter. An accepted Event is tried until it is written. While too many
// Events of the remote wait, none is accepted.
func (e *Events) Warn(cluster string, reason finding.Code, note string) (accepted bool) {
	return e.WarnOf(cluster, string(reason)+note, reason, note)
}

// WarnOf is Warn with a topic, for callers that describe the same thing with other words: within repeatAfter only the
// first note of a topic is written.
func (e *Events) WarnOf(cluster, topic string, reason finding.Code, note string) (accepted bool) {
	if e == nil {
		return true
	}
	// An Event on a cluster-wide object would have to be in the namespace default.
	return e.queue(cluster, topic, reason, note, corev1.ObjectReference{APIVersion: "v1",
		Kind: "Namespace", Name: e.namespace, Namespace: e.namespace})
}

// OwnName queues an Event on a Service of the own cluster: its own name leads to other clusters than before. The
// cluster that joined or left pays for it, so that one that does so all the time delays no Event of others.
func (e *Events) OwnName(l choice.Lent) {
	here := fmt.Sprintf("%d of %d ready in this cluster, and %s are enough", l.Ready, l.All, l.Enough)
	reason := finding.ServedElsewhere
	note := fmt.Sprintf("endpoints of %s are used under its own name: %s", strings.Join(l.Clusters, ", "), here)
	switch {
	case l.Fails():
		note = "endpoints of no other cluster are used under its own name: " + here
	case len(l.Clusters) == 0:
		reason = finding.ServedHere
		note = fmt.Sprintf("endpoints of %s are no longer used under its own name: %s", strings.Join(l.Before, ", "), here)
	case l.Use == naming.OwnNameAll:
		reason = finding.ServedTogether
		note = fmt.Sprintf("endpoints of %s are used under its own name, beside those of this cluster",
			strings.Join(l.Clusters, ", "))
	}
	// Each change is another topic: the second failover of an hour is as important as the first.
	topic := fmt.Sprintf("%s/%s %s %d", l.Namespace, l.Name, note, time.Now().UnixNano())
	e.queue(l.Moved(), topic, reason, note, corev1.ObjectReference{APIVersion: "v1", Kind: "Service",
		Namespace: l.Namespace, Name: l.Name, UID: l.UID})
}

func (e *Events) queue(cluster, topic string, reason finding.Code, note string,
	about corev1.ObjectReference) (accepted bool) {
	note = finding.CleanTo(note, maxEventNote)
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	b := e.budget(cluster)
	last, was := b.written[topic]
	told := b.asked[topic] || was && now.Sub(last) <= repeatAfter
	if full := len(b.waiting) >= maxWaiting; told || full {
		b.refused = b.refused || !told
		e.results.WithLabelValues("suppressed").Inc()
		return told
	}
	b.asked[topic] = true
	b.waiting = append(b.waiting, pendingEvent{cluster: cluster, topic: topic, event: &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: about.Namespace, GenerateName: naming.ManagedByBroker + "-"},
		EventTime:           metav1.NewMicroTime(now),
		Type:                reason.EventType(),
		Reason:              string(reason),
		Action:              "Apply",
		Note:                note,
		Regarding:           about,
		ReportingController: "semaphore.uw.io/broker",
		ReportingInstance:   e.instance,
	}})
	select {
	case e.news <- struct{}{}:
	default:
	}
	return true
}

// budget returns the budget of a remote; an unconfigured one shares that of no remote. The caller holds mu.
func (e *Events) budget(cluster string) *budget {
	b, ok := e.budgets[cluster]
	if !ok {
		cluster = ""
		b = e.budgets[cluster]
	}
	if b == nil {
		b = &budget{limiter: rate.NewLimiter(e.perSecond, e.burst), asked: map[string]bool{}, written: map[string]time.Time{}}
		e.budgets[cluster] = b
	}
	return b
}

// next returns an Event that may be written now; ok is false if there is none. wait is the time until one may be
// written; 0 if none waits.
func (e *Events) next() (next pendingEvent, wait time.Duration, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, b := range e.budgets {
		if b == nil || len(b.waiting) == 0 {
			continue
		}
		d := time.Until(b.paused)
		if d <= 0 {
			if b.limiter.Allow() {
				next, b.waiting = b.waiting[0], b.waiting[1:]
				return next, 0, true
			}
			reserved := b.limiter.Reserve()
			d = reserved.Delay()
			reserved.Cancel()
		}
		if wait == 0 || d < wait {
			wait = max(d, time.Millisecond)
		}
	}
	return pendingEvent{}, wait, false
}

// ended records the result of an attempt to write an Event. It waits again, behind the others, unless it was written or
// never can be. room reports whether there is room for Events that were not accepted.
func (e *Events) ended(p pendingEvent, err error) (room bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	b := e.budget(p.cluster)
	if err != nil && !e.hopeless(p, err) {
		p.failed = true
		b.asked[p.topic] = true
		b.waiting = append(b.waiting, p)
		b.paused = time.Now().Add(retryAfter)
		return false
	}
	delete(b.asked, p.topic)
	if len(b.written) >= maxWritten {
		clear(b.written)
	}
	b.written[p.topic] = time.Now()
	room = b.refused && len(b.waiting) <= maxWaiting/2
	b.refused = b.refused && !room
	return room
}

// hopeless reports whether the apiserver refuses an Event for its content, or the namespace of its Service is gone. The
// namespace of the mirrors may follow.
func (e *Events) hopeless(p pendingEvent, err error) bool {
	gone := apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || gone && p.event.Namespace != e.namespace
}

// Run writes Events until ctx ends, and returns ctx's error.
func (e *Events) Run(ctx context.Context) error {
	for {
		next, wait, ok := e.next()
		if !ok {
			var due <-chan time.Time // never, if none waits
			if wait > 0 {
				due = time.After(wait)
			}
			select {
			case <-e.news:
			case <-due:
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		}
		_, err := e.kube.EventsV1().Events(next.event.Namespace).Create(ctx, next.event, metav1.CreateOptions{})
		room := e.ended(next, err)
		switch {
		case err == nil:
			e.results.WithLabelValues("written").Inc()
		case ctx.Err() == nil:
			e.results.WithLabelValues("failed").Inc()
			if !next.failed {
				e.log.Warn("cannot write an Event", "reason", next.event.Reason, "note", next.event.Note,
					"again", !e.hopeless(next, err), "error", err)
			}
		}
		if room && e.room != nil {
			e.room()
		}
	}
}
