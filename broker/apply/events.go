package apply

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

const (
	// sayAgain is how long what was written is not written again.
	sayAgain = 30 * time.Minute
	// failedAgain is how long what could not be written is not tried again.
	failedAgain = 10 * time.Second
	// A remote that gets everything wrong must not fill etcd with Events. What comes faster waits.
	eventsPerSecond, eventsBurst = 0.5, 20
	// maxWaiting is how many Events wait at most; what they say is in the log and in the status too.
	maxWaiting   = 1000
	maxEventNote = 1024 // that of the API
	maxWritten   = 10_000
)

// Events writes Kubernetes Events (events.k8s.io/v1) on the namespace of the mirrors, where users look for
// what became of their services. client-go's recorder is not used: it makes one series of all Events with
// the same reason on the same object, and keeps the words of the first alone.
type Events struct {
	kube      kubernetes.Interface
	namespace string
	metrics   *Metrics
	log       *slog.Logger
	limiter   *rate.Limiter
	instance  string
	// news says that something waits.
	news chan struct{}

	mu sync.Mutex
	// waiting are the Events to be written, in their order, and asked their topics.
	waiting []pendingEvent
	asked   map[string]bool
	// written is when an Event was last written, by its topic; where it could not be, so that it is written again after failedAgain.
	written map[string]time.Time
}

// pendingEvent is an Event that is to be written.
type pendingEvent struct {
	topic string
	event *eventsv1.Event
}

// NewEvents makes the writer of Events on namespace; Run writes them.
func NewEvents(kube kubernetes.Interface, namespace string, metrics *Metrics, log *slog.Logger) *Events {
	instance, err := os.Hostname()
	if err != nil || instance == "" {
		instance = naming.ManagedByBroker
	}
	return &Events{
		kube: kube, namespace: namespace, metrics: metrics, log: log,
		limiter:  rate.NewLimiter(eventsPerSecond, eventsBurst),
		instance: instance, news: make(chan struct{}, 1),
		asked: map[string]bool{}, written: map[string]time.Time{},
	}
}

// Warn asks for a warning to be written: reason is one word in CamelCase, note a sentence. It never waits. The same words are
// not written again for a while.
func (e *Events) Warn(reason, note string) { e.WarnOf(reason+note, reason, note) }

// WarnOf is Warn for one topic of which others may say the same in other words: the first that is written counts for all.
func (e *Events) WarnOf(topic, reason, note string) {
	if e == nil {
		return
	}
	if len(note) > maxEventNote {
		note = strings.ToValidUTF8(note[:maxEventNote], "")
	}
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	last, was := e.written[topic]
	if e.asked[topic] || was && now.Sub(last) <= sayAgain || len(e.waiting) >= maxWaiting {
		e.metrics.events.WithLabelValues("suppressed").Inc()
		return
	}
	e.asked[topic] = true
	e.waiting = append(e.waiting, pendingEvent{topic, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, GenerateName: naming.ManagedByBroker + "-"},
		EventTime:  metav1.NewMicroTime(now),
		Type:       corev1.EventTypeWarning,
		Reason:     reason,
		Action:     "Apply",
		Note:       note,
		// An Event on a cluster-wide object would have to be in the namespace default.
		Regarding:           corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: e.namespace, Namespace: e.namespace},
		ReportingController: "semaphore.uw.io/broker",
		ReportingInstance:   e.instance,
	}})
	select {
	case e.news <- struct{}{}:
	default:
	}
}

// next is the Event to be written next; ok is false for none.
func (e *Events) next() (next pendingEvent, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.waiting) == 0 {
		return pendingEvent{}, false
	}
	next, e.waiting = e.waiting[0], e.waiting[1:]
	return next, true
}

// ended notes whether an Event was written. One that was not may be asked for again soon.
func (e *Events) ended(topic string, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.asked, topic)
	if len(e.written) >= maxWritten {
		clear(e.written)
	}
	e.written[topic] = time.Now()
	if !ok {
		e.written[topic] = time.Now().Add(failedAgain - sayAgain)
	}
}

// Run writes Events until ctx ends.
func (e *Events) Run(ctx context.Context) error {
	for {
		next, ok := e.next()
		if !ok {
			select {
			case <-e.news:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := e.limiter.Wait(ctx); err != nil {
			return ctx.Err()
		}
		_, err := e.kube.EventsV1().Events(e.namespace).Create(ctx, next.event, metav1.CreateOptions{})
		e.ended(next.topic, err == nil)
		if err != nil && ctx.Err() == nil {
			e.metrics.events.WithLabelValues("failed").Inc()
			e.log.Warn("cannot write an Event", "reason", next.event.Reason, "note", next.event.Note, "error", err)
			continue
		}
		e.metrics.events.WithLabelValues("written").Inc()
	}
}
