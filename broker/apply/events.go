package apply

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

const (
	// tellAgain is how long the same words are not repeated.
	tellAgain = 30 * time.Minute
	// A remote that gets everything wrong must not fill etcd with Events.
	eventsPerSecond, eventsBurst = 0.5, 20
	maxEventNote                 = 1024 // that of the API
	eventQueue                   = 64
	maxTold                      = 10_000
)

// Events writes Kubernetes Events (events.k8s.io/v1) on the namespace of the mirrors, where users look for
// what became of their services. client-go's recorder is not used: it makes one series of all Events with
// the same reason on the same object, and keeps the words of the first alone.
type Events struct {
	kube      kubernetes.Interface
	namespace string
	metrics   *Metrics
	log       *slog.Logger
	limiter   flowcontrol.RateLimiter
	queue     chan *eventsv1.Event
	instance  string

	mu   sync.Mutex
	told map[string]time.Time
}

// NewEvents makes the writer of Events on namespace; Run writes them.
func NewEvents(kube kubernetes.Interface, namespace string, metrics *Metrics, log *slog.Logger) *Events {
	instance, err := os.Hostname()
	if err != nil || instance == "" {
		instance = naming.ManagedByBroker
	}
	return &Events{
		kube: kube, namespace: namespace, metrics: metrics, log: log,
		limiter:  flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventsBurst),
		queue:    make(chan *eventsv1.Event, eventQueue),
		instance: instance,
		told:     map[string]time.Time{},
	}
}

// Warn asks for a warning to be written: reason is one word in CamelCase, note a sentence. It never waits.
func (e *Events) Warn(reason, note string) {
	if e == nil {
		return
	}
	if len(note) > maxEventNote {
		note = note[:maxEventNote]
	}
	now := time.Now()
	e.mu.Lock()
	last, ok := e.told[reason+note]
	fresh := !ok || now.Sub(last) > tellAgain
	if fresh {
		if len(e.told) >= maxTold {
			clear(e.told)
		}
		e.told[reason+note] = now
	}
	e.mu.Unlock()
	if !fresh || !e.limiter.TryAccept() {
		e.metrics.events.WithLabelValues("suppressed").Inc()
		return
	}
	event := &eventsv1.Event{
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
	}
	select {
	case e.queue <- event:
	default:
		e.metrics.events.WithLabelValues("suppressed").Inc()
	}
}

// Run writes Events until ctx ends.
func (e *Events) Run(ctx context.Context) error {
	for {
		select {
		case event := <-e.queue:
			_, err := e.kube.EventsV1().Events(e.namespace).Create(ctx, event, metav1.CreateOptions{})
			if err != nil && ctx.Err() == nil {
				e.metrics.events.WithLabelValues("failed").Inc()
				e.log.Warn("cannot write an Event", "reason", event.Reason, "note", event.Note, "error", err)
				continue
			}
			e.metrics.events.WithLabelValues("written").Inc()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
