package publish

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// carried is a stream without a network: what is sent, when, and what is received.
type carried struct {
	grpc.ClientStream
	ctx     context.Context
	sent    chan *semaphorev1.PublishRequest
	answers chan *semaphorev1.PublishResponse
}

func (c *carried) Send(m *semaphorev1.PublishRequest) error {
	select {
	case c.sent <- m:
		return nil
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
}

func (c *carried) Recv() (*semaphorev1.PublishResponse, error) {
	select {
	case m := <-c.answers:
		return m, nil
	case <-c.ctx.Done():
		return nil, c.ctx.Err()
	}
}

// offline runs a publisher's stream in a bubble of time, and returns the stream when it is welcome.
func offline(t *testing.T, b *bench, p *Publisher,
	answer func(*semaphorev1.PublishRequest) []*semaphorev1.PublishResponse) (all func() []*semaphorev1.PublishRequest) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stream := &carried{ctx: ctx, sent: make(chan *semaphorev1.PublishRequest),
		answers: make(chan *semaphorev1.PublishResponse, 1000)}
	s := NewSession("c1", "c2", "", 0, source{}, b.catalog.Rules().KindsFor("c2"), b.catalog.Journal())
	more := make(chan struct{}, 1)
	received := make(chan *semaphorev1.PublishRequest, 1000)
	done := make(chan struct{}, 3)
	go func() { _ = p.receive(t.Context(), stream, s, more); done <- struct{}{} }()
	go func() { _ = p.send(ctx, stream, s, more); done <- struct{}{} }()
	go func() {
		defer func() { done <- struct{}{} }()
		for m := s.Hello(); m != nil; {
			for _, r := range answer(m) {
				stream.answers <- r
			}
			select {
			case m = <-stream.sent:
				received <- m
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done; <-done; <-done })
	return func() (out []*semaphorev1.PublishRequest) {
		synctest.Wait()
		for len(received) > 0 {
			out = append(out, <-received)
		}
		return out
	}
}

// answering is what a broker on the real replica answers.
func answering() func(*semaphorev1.PublishRequest) []*semaphorev1.PublishResponse {
	s := newReplica().Open()
	return func(m *semaphorev1.PublishRequest) []*semaphorev1.PublishResponse {
		r, err := s.Receive(time.Now(), m)
		if err != nil {
			panic(err)
		}
		return r.Responses
	}
}

// A change, and what is to be reported to the own broker, wait for no heartbeat.
func TestNothingWaitsForAHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, "c2")
		lost := make(chan struct{}, 1)
		p := b.publisher("c2", "", Options{Source: source{}, ReportNow: lost,
			Deliveries: func() []*semaphorev1.Delivery { return []*semaphorev1.Delivery{{Cluster: "c3"}} }})
		sent := offline(t, b, p, answering())
		sent() // the snapshots
		began := time.Now()
		for i := range 20 {
			time.Sleep(HeartbeatInterval / 7)
			sent()
			b.pod("web", fmt.Sprint("10.1.1.", i+1))
			if m := sent(); len(m) != 1 || len(m[0].GetChanges().GetChanges()) != 1 {
				t.Fatalf("after %s, a change made it send %v", time.Since(began), m)
			}
			lost <- struct{}{}
			if m := sent(); len(m) != 1 || len(m[0].GetHeartbeat().GetDeliveries()) != 1 {
				t.Fatalf("after %s, what is to be reported made it send %v", time.Since(began), m)
			}
		}
		time.Sleep(10 * HeartbeatInterval)
		if m := sent(); len(m) != 10 {
			t.Errorf("%d messages in %s in which nothing happened", len(m), 10*HeartbeatInterval)
		}
	})
}

// ofServices makes b one of Services, and returns a publisher that is not run.
func (b *bench) ofServices() *Publisher {
	b.catalog = catalog.New(catalog.Rules{Features: config.Features{config.Services}, Clusters: []string{"c2"},
		Mirror: labels.Everything(), Global: labels.Nothing()})
	return b.publisher("c2", "", Options{Source: source{}})
}

func serviceKey(name string) catalog.Key {
	return catalog.Key{Kind: semaphorev1.Kind_KIND_SERVICE, Namespace: "shop", Name: name}
}

func echoAt(port int32) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "echo"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: port, Protocol: "TCP"}}}}
}

// That a broker has nothing against a Service is known when it has answered a heartbeat that came after the Service,
// however long that takes it.
func TestVerdictOfASlowBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, "c2")
		p := b.ofServices()
		key := serviceKey("echo")
		put := func(port int32) uint64 {
			b.catalog.PutService(echoAt(port), time.Now())
			return b.catalog.Journal().Head()
		}
		// It needs twenty seconds for each heartbeat, and none for changes. It says what is new with a heartbeat.
		const slow = 4 * HeartbeatInterval
		var objection atomic.Pointer[string]
		object := func(text string) { objection.Store(&text) }
		object("taken")
		said, receive := "", answering()
		var beats atomic.Int64
		sent := offline(t, b, p, func(m *semaphorev1.PublishRequest) []*semaphorev1.PublishResponse {
			answers := receive(m)
			if m.GetHeartbeat() == nil {
				return answers
			}
			time.Sleep(slow)
			beats.Add(1)
			if *objection.Load() == said {
				return answers
			}
			said = *objection.Load()
			return slices.Insert(answers, 0, reported(&semaphorev1.Outcome{Key: key.Proto(), Code: said, Reason: said}))
		})
		revision := put(80)
		for i, want := range []string{"taken", "too long", ""} {
			object(want)
			before := beats.Load()
			for {
				sent()
				version := p.VerdictVersion()
				if is, known := p.Verdict(key, revision); known {
					if is != want {
						t.Errorf("%d: after %d heartbeats it says %q, not %q", i, beats.Load()-before, is, want)
					}
					break
				} else if is != "" {
					t.Errorf("%d: unknown, and %q", i, is)
				}
				if beats.Load() > before+10 {
					t.Fatalf("%d: unknown after %d heartbeats", i, beats.Load()-before)
				}
				time.Sleep(time.Second)
				sent()
				if _, known := p.Verdict(key, revision); known && p.VerdictVersion() == version {
					t.Errorf("%d: it is known, and the version is still %d", i, version)
				}
			}
			revision = put(int32(81 + i))
			sent()
		}
	})
}

// A Service that is deleted and offered again between two heartbeats is as little wanted as before: the broker does not
// repeat what it has against it.
func TestVerdictOfAServiceThatIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, "c2")
		p := b.ofServices()
		key := serviceKey("echo")
		receive, said := answering(), false
		sent := offline(t, b, p, func(m *semaphorev1.PublishRequest) []*semaphorev1.PublishResponse {
			answers := receive(m)
			if m.GetHeartbeat() != nil && !said {
				said = true
				answers = slices.Insert(answers, 0,
					reported(&semaphorev1.Outcome{Key: key.Proto(), Code: "NameTaken", Reason: "taken"}))
			}
			return answers
		})
		for range 3 {
			b.catalog.PutService(echoAt(80), time.Now())
			sent()
			time.Sleep(HeartbeatInterval)
			sent()
			if is, known := p.Verdict(key, b.catalog.Journal().Head()); is != "taken" || !known {
				t.Errorf("it says %q (%t), not that the name is taken", is, known)
			}
			b.catalog.DeleteService("shop", "echo", time.Now())
			sent()
		}
	})
}

// The Ack of the snapshots, and those of changes, answer no heartbeat that was sent before they came.
func TestAnswersAreCountedInOrder(t *testing.T) {
	b := newBench(t, "c2")
	b.pod("web", "10.1.1.1")
	s := NewSession("c1", "c2", "", 0, source{}, b.catalog.Rules().KindsFor("c2"), b.catalog.Journal())
	answer := answering()
	var answers []*semaphorev1.PublishResponse
	sent := func(m *semaphorev1.PublishRequest) { answers = append(answers, answer(m)...) }
	received := func(answered int, at uint64) {
		t.Helper()
		_, err := s.Receive(answers[0])
		must(t, err)
		answers = answers[1:]
		if s.answered != uint64(answered) || s.answeredAt != at {
			t.Errorf("%d heartbeats are answered, the last at %d, not %d and %d", s.answered, s.answeredAt, answered, at)
		}
	}
	sent(s.Hello())
	received(0, 0)
	all := func() {
		for m, err := s.Next(); m != nil; m, err = s.Next() {
			must(t, err)
			sent(m)
		}
	}
	all()
	sent(s.Heartbeat())
	sent(s.Heartbeat())
	b.pod("web", "10.1.1.2")
	all()
	b.pod("web", "10.1.1.3")
	all()
	sent(s.Heartbeat())
	received(0, 0) // the snapshots
	received(1, 1)
	received(2, 1)
	received(2, 1)
	received(2, 1)
	received(3, 3)
	if len(answers)+len(s.unacked) > 0 {
		t.Errorf("%d answers are left, and %d messages wait for one", len(answers), len(s.unacked))
	}
}

// One Ack that the broker sends for many messages answers all of them, so that what is sent afterwards is known as soon
// as before.
func TestAMergedAckAnswersAllBeforeIt(t *testing.T) {
	b := newBench(t, "c2")
	b.pod("web", "10.1.1.1")
	s := NewSession("c1", "c2", "", 0, source{}, b.catalog.Rules().KindsFor("c2"), b.catalog.Journal())
	answer := answering()
	var acks replica.Acks
	send := func(m *semaphorev1.PublishRequest, waiting bool) {
		t.Helper()
		for _, r := range acks.Send(time.Now(), answer(m), waiting) {
			_, err := s.Receive(r)
			must(t, err)
		}
	}
	all := func(waiting bool) {
		t.Helper()
		for m, err := s.Next(); m != nil; m, err = s.Next() {
			must(t, err)
			send(m, waiting)
		}
	}
	send(s.Hello(), false)
	all(false)
	for range 12 { // the broker reads nothing for a minute
		send(s.Heartbeat(), true)
	}
	b.pod("web", "10.1.1.2")
	all(false)
	send(s.Heartbeat(), false)
	if head := b.catalog.Journal().Head(); s.answeredAt != head || len(s.unacked) > 0 {
		t.Errorf("answered at %d, want %d; %d messages wait for an answer", s.answeredAt, head, len(s.unacked))
	}
}
