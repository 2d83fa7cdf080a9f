package players

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

const (
	// lifetime ends a stream.
	lifetime = 30 * time.Minute
	// patience ends a stream on which the message that a test waits for does not come.
	patience = 3 * time.Minute
)

// Exporter is an exporter whose messages a test sends.
type Exporter struct {
	Stream grpc.BidiStreamingClient[semaphorev1.PublishRequest, semaphorev1.PublishResponse]
	// Cancel ends the stream.
	Cancel context.CancelFunc

	tb testing.TB
}

// Publish opens a stream of an exporter.
func Publish(tb testing.TB, conn *grpc.ClientConn) *Exporter {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), lifetime)
	tb.Cleanup(cancel)
	return &Exporter{testkit.Value(semaphorev1.NewFederationServiceClient(conn).Publish(ctx))(tb), cancel, tb}
}

func (e *Exporter) Send(all ...*semaphorev1.PublishRequest) {
	e.tb.Helper()
	for _, m := range all {
		if err := e.Stream.Send(m); err != nil {
			_, err = e.Stream.Recv()
			e.tb.Fatalf("send %v: %v", m, err)
		}
	}
}

func (e *Exporter) Greet(hello *semaphorev1.PublishRequest) *semaphorev1.Welcome {
	e.tb.Helper()
	e.Send(hello)
	w := e.Recv().GetWelcome()
	if w == nil {
		e.tb.Fatal("no welcome")
	}
	return w
}

// Recv returns the broker's next answer.
func (e *Exporter) Recv() *semaphorev1.PublishResponse {
	e.tb.Helper()
	defer time.AfterFunc(patience, e.Cancel).Stop()
	return testkit.Value(e.Stream.Recv())(e.tb)
}

// Acked waits until a revision is acknowledged and returns the refusals before it.
func (e *Exporter) Acked(revision uint64) (refused []*semaphorev1.Refusal) {
	e.tb.Helper()
	for {
		m := e.Recv()
		if r := m.GetRefusal(); r != nil {
			refused = append(refused, r)
		}
		if a := m.GetAck(); a != nil && a.GetRevision() >= revision {
			return refused
		}
	}
}

// Err waits for the end of the stream. One that does not end is cancelled after half a minute, so that the test says
// what was expected of it.
func (e *Exporter) Err() error {
	defer time.AfterFunc(30*time.Second, e.Cancel).Stop()
	for {
		if _, err := e.Stream.Recv(); err != nil {
			return err
		}
	}
}

// headOfAll is the revision at which SendAll sends.
const headOfAll = 100

// SendAll says hello for all kinds, sends the snapshots of these objects at revision 100, and waits until all is
// acknowledged.
func (e *Exporter) SendAll(cluster, epoch string, objects ...*semaphorev1.Object) {
	e.tb.Helper()
	e.SendFrom("", cluster, epoch, objects...)
}

// SendFrom is SendAll of an exporter that reads the cluster with this UID.
func (e *Exporter) SendFrom(source, cluster, epoch string, objects ...*semaphorev1.Object) {
	e.tb.Helper()
	hello := Hello(cluster, epoch, headOfAll, AllKinds...)
	hello.GetHello().SourceId = source
	e.Greet(hello)
	e.Send(Snapshots(AllKinds, headOfAll, objects...)...)
	e.Acked(headOfAll)
}
