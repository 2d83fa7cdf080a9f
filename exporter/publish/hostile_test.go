package publish

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

// TestHostileText: what another cluster said becomes one bounded line of printable, valid text.
func TestHostileText(t *testing.T) { testkit.OneLine(t, maxReason, truncate) }

// taken is a broker that was taken over: it answers Hello with what a test sends it.
type taken struct {
	semaphorev1.UnimplementedFederationServiceServer
	answers chan *semaphorev1.PublishResponse
}

func (b *taken) Publish(stream grpc.BidiStreamingServer[semaphorev1.PublishRequest,
	semaphorev1.PublishResponse]) error {
	go func() {
		for {
			if _, err := stream.Recv(); err != nil {
				return
			}
		}
	}()
	for {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case m := <-b.answers:
			if err := stream.Send(m); err != nil {
				return err
			}
		}
	}
}

// TestHostileBroker: of what a broker that was taken over sends, an exporter keeps and decodes no more than the stated
// bounds, and takes messages only as fast as they allow.
func TestHostileBroker(t *testing.T) {
	const pods, perSecond = 100, 100
	b := newBench(t, "c2")
	for i := range pods {
		b.pod(fmt.Sprint("pod-", i), fmt.Sprintf("10.1.0.%d", i))
	}
	hostile := &taken{answers: make(chan *semaphorev1.PublishResponse)}
	listener, err := net.Listen("tcp", loopback.Address(t))
	must(t, err)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(
		b.trust.Source(t, "c2", "broker").ServerTLS(func(spiffeid.ID) error { return nil }))))
	semaphorev1.RegisterFederationServiceServer(server, hostile)
	testkit.Serve(t, listener, server)
	p := b.publisher("c2", listener.Addr().String(), Options{Source: source{}})
	p.answers.SetLimit(perSecond)
	testkit.Run(t, p.Run)

	long := strings.Repeat("x", 50_000)
	domains := make([]string, 1000)
	for i := range domains {
		domains[i] = long[:10]
	}
	hostile.answers <- welcome(&semaphorev1.Welcome{Cluster: "c2", ProtocolVersion: 1, SoftwareVersion: long[:5000],
		LabelDomains: domains})
	refuse := func(name, text string) *semaphorev1.PublishResponse {
		return refused(&semaphorev1.Refusal{
			Key:      &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_SET_MEMBER, Namespace: "shop", Name: name},
			Revision: 1 << 40, Code: text, Reason: text})
	}
	for i := range pods {
		hostile.answers <- refuse(fmt.Sprint("pod-", i), long[:25_000])
		hostile.answers <- reported(&semaphorev1.Outcome{Key: serviceKey(fmt.Sprint(long[:25_000], i)).Proto(),
			Code: "SettingsDiffer", Reason: long[:10_000], Conflicts: domains})
	}
	hostile.answers <- reported(&semaphorev1.Outcome{Key: serviceKey("short").Proto(), Code: long, Conflicts: domains})
	within(t, "all is read", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.refused) == pods && len(p.outcomes) > 0
	})
	kept := 0
	p.mu.Lock()
	for key, r := range p.refused {
		kept += len(key.Name) + len(r.code) + len(r.reason)
	}
	for key, o := range p.outcomes {
		kept += len(key.Name) + len(o.code) + len(o.reason)
		if len(o.conflicts) > 0 || o.conflict != "" {
			t.Errorf("another cluster's broker decides about the imports of %s: %d conflicts", key, len(o.conflicts))
		}
	}
	if len(p.session.peerSoftware) > maxSoftware || len(p.session.peerLabelDomains) > maxLabelDomains {
		t.Errorf("%d bytes of a version and %d domains are kept", len(p.session.peerSoftware),
			len(p.session.peerLabelDomains))
	}
	p.mu.Unlock()
	t.Logf("%d bytes are kept", kept)
	if most := (pods + 1) * (maxReason + 64 + maxKey); kept > most {
		t.Errorf("%d bytes are kept, and %d is the most", kept, most)
	}

	// Orders beyond the burst wait.
	p.answers.SetBurst(2 * perSecond)
	const flood = 4 * perSecond
	began := time.Now()
	for range flood {
		hostile.answers <- ack(0)
	}
	hostile.answers <- refuse("pod-0", "last")
	within(t, "the last one is read", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for key, r := range p.refused {
			if key.Name == "pod-0" {
				return r.reason == "last"
			}
		}
		return false
	})
	if took := time.Since(began); took < 1900*time.Millisecond {
		t.Errorf("%d messages are read in %s, although %d may come at once and %d a second", flood, took, 2*perSecond,
			perSecond)
	}

	// A message of 40,000 bytes that would be a hundred times as large is not decoded.
	held := make([]*semaphorev1.KindState, 20_000)
	for i := range held {
		held[i] = &semaphorev1.KindState{}
	}
	hostile.answers <- welcome(&semaphorev1.Welcome{Held: held})
	within(t, "it ends the stream", func() bool { return strings.Contains(p.Status().GetLastError(), "once decoded") })
}

// TestUnacknowledged: a broker that acknowledges nothing costs no more than the bound of messages that wait.
func TestUnacknowledged(t *testing.T) {
	s := versionSession()
	if _, err := s.Receive(hi()); err != nil {
		t.Fatal(err)
	}
	for i := range maxUnacked + 10 {
		k, o := member("pod0", fmt.Sprint("10.1.1.", i))
		put(s.journal, k, o, time.Unix(1, 0))
		for {
			m, err := s.Next()
			if err != nil {
				t.Logf("after %d messages: %v", i, err)
				return
			}
			if m == nil {
				break
			}
		}
		if len(s.unacked) > maxUnacked+1 {
			t.Fatalf("%d messages wait for an acknowledgement", len(s.unacked))
		}
	}
	t.Errorf("%d messages wait, and the stream continues", len(s.unacked))
}
