package publish

import (
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// source is one of which all is read up to read, and nothing after newest. Without these no revision is known.
type source struct {
	id           string
	read, newest func(semaphorev1.Kind) uint64
}

func (s source) ID() string                       { return s.id }
func (s source) Ready(semaphorev1.Kind) bool      { return true }
func (s source) Read(k semaphorev1.Kind) uint64   { return known(s.read, k) }
func (s source) Newest(k semaphorev1.Kind) uint64 { return known(s.newest, k) }

func known(of func(semaphorev1.Kind) uint64, k semaphorev1.Kind) uint64 {
	if of == nil {
		return 0
	}
	return of(k)
}

// readTo is a source of which all is read up to a resourceVersion that does not grow.
type readTo uint64

// upTo is how far a source has been read for any kind.
func upTo(revision uint64) func(semaphorev1.Kind) uint64 {
	return func(semaphorev1.Kind) uint64 { return revision }
}

func (readTo) ID() string                  { return "the source" }
func (readTo) Ready(semaphorev1.Kind) bool { return true }
func (r readTo) Read(k semaphorev1.Kind) uint64 {
	if k != semaphorev1.Kind_KIND_SET_MEMBER {
		return 1_000_000
	}
	return uint64(r)
}

func (r readTo) Newest(k semaphorev1.Kind) uint64 { return r.Read(k) }

// An apiserver whose etcd was put back looks like one that lags, and stays so. The way out is to restart the brokers,
// which forget what they received: the exporter goes by what they say then, and need not be restarted itself.
func TestARestartedBrokerReceivesWhatWaited(t *testing.T) {
	b := newBench(t, "c2")
	restored := newBench(t, "c2") // the exporter of the restored cluster
	restored.trust = b.trust
	c2 := newBroker(t, "c2", b.trust.Source(t, "c2", "broker"))
	earlier := NewSession("c1", "c2", "", 0, source{readTo(0).ID(), upTo(1000), upTo(1000)},
		[]semaphorev1.Kind{semaphorev1.Kind_KIND_SET_MEMBER}, b.catalog.Journal())
	s := c2.replica.Open()
	for m := earlier.Hello(); m != nil; {
		r, err := s.Receive(time.Now(), m)
		must(t, err)
		for _, answer := range r.Responses {
			_, err := earlier.Receive(answer)
			must(t, err)
		}
		m, err = earlier.Next()
		must(t, err)
	}
	s.Close()

	restored.pod("web", "10.1.1.1")
	p := restored.publishFrom(c2.start(), readTo(10))
	within(t, "it looks as if the apiserver lags", func() bool {
		return p.Status().GetConnected() &&
			len(finding.Texts(p.Findings())) == 1
	})
	if n := c2.held(); n != 0 {
		t.Fatalf("%d objects are sent", n)
	}

	c2.stop()
	c2.mu.Lock()
	c2.replica = replica.New("c1", "c2", "broker version",
		func(o *semaphorev1.Object) (*semaphorev1.Object, []admission.Refusal) { return o, nil })
	c2.mu.Unlock()
	c2.start()
	within(t, "the broker that forgot receives it",
		func() bool { return c2.held() == 1 && len(finding.Texts(p.Findings())) == 0 })
}
