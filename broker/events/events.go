// Package events writes Kubernetes Events about what operators and users should know, with a budget for each remote.
//
// It owns the budgets and the recently written Events. Its input is a reason and a sentence; its output are Events on
// the namespace of the mirrors. It may not import an engine.
//
// It may import no other package of the broker.
package events

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

const (
	// repeatAfter is the least time between two Events of one topic.
	repeatAfter = 30 * time.Minute
	// retryAfter is the wait before an Event that could not be written is accepted again.
	retryAfter = 10 * time.Second
	// A remote that gets everything wrong must not fill etcd with Events, nor delay those of others: each remote has a
	// budget of its own, and so have Events of no remote. Events above the budget wait.
	eventsPerSecond, eventsBurst = 0.5, 20
	// maxWaiting bounds the waiting Events of a remote; the log and the status have the same information.
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
	// news signals that an Event waits.
	news chan struct{}

	mu sync.Mutex
	// budgets are by remote; "" is for Events of no remote.
	budgets map[string]*budget
}

// budget has the Events of one remote.
type budget struct {
	limiter *rate.Limiter
	// waiting are the Events to be written, in order, and asked are their topics.
	waiting []pendingEvent
	asked   map[string]bool
	// written is when an Event was last written, by topic; after a failure it is set so that the topic is accepted
	// again after retryAfter.
	written map[string]time.Time
}

// pendingEvent is an Event to be written.
type pendingEvent struct {
	cluster, topic string
	event          *eventsv1.Event
}

// New returns a writer of Events on namespace; Run writes them. Each of remotes has a budget.
func New(kube kubernetes.Interface, namespace string, remotes []string, reg prometheus.Registerer,
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
		instance: instance, news: make(chan struct{}, 1), budgets: map[string]*budget{"": nil},
	}
	for _, remote := range remotes {
		e.budgets[remote] = nil
	}
	reg.MustRegister(e.results)
	return e
}

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
// block. It does not repeat a note within repeatAfter.
func (e *Events) Warn(cluster string, reason finding.Code, note string) {
	e.WarnOf(cluster, string(reason)+note, reason, note)
}

// WarnOf is Warn with a topic, for callers that describe the same thing with other words: within repeatAfter only the
// first note of a topic is written.
func (e *Events) WarnOf(cluster, topic string, reason finding.Code, note string) {
	if e == nil {
		return
	}
	note = finding.CleanTo(note, maxEventNote)
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	b := e.budget(cluster)
	last, was := b.written[topic]
	if b.asked[topic] || was && now.Sub(last) <= repeatAfter || len(b.waiting) >= maxWaiting {
		// An Event without room does not count as written: the next call queues it.
		e.results.WithLabelValues("suppressed").Inc()
		return
	}
	b.asked[topic] = true
	b.waiting = append(b.waiting, pendingEvent{cluster, topic, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, GenerateName: naming.ManagedByBroker + "-"},
		EventTime:  metav1.NewMicroTime(now),
		Type:       corev1.EventTypeWarning,
		Reason:     string(reason),
		Action:     "Apply",
		Note:       note,
		// An Event on a cluster-wide object would have to be in the namespace default.
		Regarding: corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: e.namespace,
			Namespace: e.namespace},
		ReportingController: "semaphore.uw.io/broker",
		ReportingInstance:   e.instance,
	}})
	select {
	case e.news <- struct{}{}:
	default:
	}
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

// next returns an Event that may be written now, of the remotes in turn; ok is false if there is none. wait is the time
// until one may be written; 0 if none waits.
func (e *Events) next(after string) (next pendingEvent, of string, wait time.Duration, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var waiting []string
	for cluster, b := range e.budgets {
		if b != nil && len(b.waiting) > 0 {
			waiting = append(waiting, cluster)
		}
	}
	slices.Sort(waiting)
	i, _ := slices.BinarySearch(waiting, after+"\x00")
	for _, cluster := range slices.Concat(waiting[i:], waiting[:i]) {
		b := e.budgets[cluster]
		if b.limiter.Allow() {
			next, b.waiting = b.waiting[0], b.waiting[1:]
			return next, cluster, 0, true
		}
		reserved := b.limiter.Reserve()
		if d := reserved.Delay(); wait == 0 || d < wait {
			wait = max(d, time.Millisecond)
		}
		reserved.Cancel()
	}
	return pendingEvent{}, "", wait, false
}

// ended records whether an Event was written. If not, its topic is accepted again after retryAfter.
func (e *Events) ended(p pendingEvent, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	b := e.budget(p.cluster)
	delete(b.asked, p.topic)
	if len(b.written) >= maxWritten {
		clear(b.written)
	}
	b.written[p.topic] = time.Now()
	if !ok {
		b.written[p.topic] = time.Now().Add(retryAfter - repeatAfter)
	}
}

// Run writes Events until ctx ends.
func (e *Events) Run(ctx context.Context) error {
	of := ""
	for {
		next, cluster, wait, ok := e.next(of)
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
		of = cluster
		_, err := e.kube.EventsV1().Events(e.namespace).Create(ctx, next.event, metav1.CreateOptions{})
		e.ended(next, err == nil)
		if err != nil && ctx.Err() == nil {
			e.results.WithLabelValues("failed").Inc()
			e.log.Warn("cannot write an Event; it is lost", "reason", next.event.Reason, "note", next.event.Note, "error", err)
			continue
		}
		e.results.WithLabelValues("written").Inc()
	}
}
