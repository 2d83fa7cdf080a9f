package apply

import (
	"context"
	"log/slog"
	"os"
	"slices"
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
	// A remote that gets everything wrong must not fill etcd with Events, nor keep those of others from being written: each remote has
	// a budget of its own, and what is of no remote has one too. What comes faster waits.
	eventsPerSecond, eventsBurst = 0.5, 20
	// maxWaiting is how many Events of a remote wait at most; what they say is in the log and in the status too.
	maxWaiting   = 200
	maxEventNote = 1024 // that of the API
	// maxWritten is how many topics of a remote are remembered.
	maxWritten = 2_000
)

// Events writes Kubernetes Events (events.k8s.io/v1) on the namespace of the mirrors, where users look for
// what became of their services. client-go's recorder is not used: it makes one series of all Events with
// the same reason on the same object, and keeps the words of the first alone.
type Events struct {
	kube      kubernetes.Interface
	namespace string
	metrics   *Metrics
	log       *slog.Logger
	instance  string
	// perSecond and burst are those of each remote.
	perSecond rate.Limit
	burst     int
	// news says that something waits.
	news chan struct{}

	mu sync.Mutex
	// budgets are by remote; "" is for what is of none.
	budgets map[string]*budget
}

// budget is what one remote may have written.
type budget struct {
	limiter *rate.Limiter
	// waiting are the Events to be written, in their order, and asked their topics.
	waiting []pendingEvent
	asked   map[string]bool
	// written is when an Event was last written, by its topic; where it could not be, so that it is written again after failedAgain.
	written map[string]time.Time
}

// pendingEvent is an Event that is to be written.
type pendingEvent struct {
	cluster, topic string
	event          *eventsv1.Event
}

// NewEvents makes the writer of Events on namespace; Run writes them. remotes are those that have a budget each.
func NewEvents(kube kubernetes.Interface, namespace string, remotes []string, metrics *Metrics, log *slog.Logger) *Events {
	instance, err := os.Hostname()
	if err != nil || instance == "" {
		instance = naming.ManagedByBroker
	}
	e := &Events{
		kube: kube, namespace: namespace, metrics: metrics, log: log,
		perSecond: eventsPerSecond, burst: eventsBurst,
		instance: instance, news: make(chan struct{}, 1), budgets: map[string]*budget{"": nil},
	}
	for _, remote := range remotes {
		e.budgets[remote] = nil
	}
	return e
}

// Warn asks for a warning about a remote to be written; "" for none. reason is one word in CamelCase, note a sentence. It never waits. The
// same words are not written again for a while.
func (e *Events) Warn(cluster, reason, note string) { e.WarnOf(cluster, reason+note, reason, note) }

// WarnOf is Warn for one topic of which others may say the same in other words: the first that is written counts for all.
func (e *Events) WarnOf(cluster, topic, reason, note string) {
	if e == nil {
		return
	}
	if len(note) > maxEventNote {
		note = strings.ToValidUTF8(note[:maxEventNote], "")
	}
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	b := e.budget(cluster)
	last, was := b.written[topic]
	if b.asked[topic] || was && now.Sub(last) <= sayAgain || len(b.waiting) >= maxWaiting {
		// What finds no room does not count as written: it is written when it is asked for again.
		e.metrics.events.WithLabelValues("suppressed").Inc()
		return
	}
	b.asked[topic] = true
	b.waiting = append(b.waiting, pendingEvent{cluster, topic, &eventsv1.Event{
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

// budget is that of a remote; of one that is not configured, that of none. The caller holds mu.
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

// next is an Event that may be written now, of the remotes in turn; ok is false for none. wait is after how long one may be; 0 where none waits.
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

// ended notes whether an Event was written. One that was not may be asked for again soon.
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
		b.written[p.topic] = time.Now().Add(failedAgain - sayAgain)
	}
}

// Run writes Events until ctx ends.
func (e *Events) Run(ctx context.Context) error {
	of := ""
	for {
		next, cluster, wait, ok := e.next(of)
		if !ok {
			var due <-chan time.Time // never, where none waits
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
			e.metrics.events.WithLabelValues("failed").Inc()
			e.log.Warn("cannot write an Event", "reason", next.event.Reason, "note", next.event.Note, "error", err)
			continue
		}
		e.metrics.events.WithLabelValues("written").Inc()
	}
}
