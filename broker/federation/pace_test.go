package federation

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// answered is a call whose exporter reads all answers.
type answered struct {
	*call
	out chan *semaphorev1.PublishResponse
}

func (a *answered) Send(m *semaphorev1.PublishResponse) error {
	a.out <- m
	return nil
}

// paced is an exporter on a stream in a bubble of synctest.
type paced struct {
	t   *testing.T
	to  *answered
	ctx context.Context
}

// publishTo opens a stream of a cluster's exporter, whose journal is at revision 1000.
func publishTo(t *testing.T, s *Server, cluster string) *paced { return publishAt(t, s, cluster, 1000) }

func publishAt(t *testing.T, s *Server, cluster string, head uint64) *paced {
	ctx, cancel := callOf(t, cluster)
	p := &paced{t: t, ctx: ctx, to: &answered{&call{ctx: ctx, in: make(chan []byte)},
		make(chan *semaphorev1.PublishResponse, 10_000)}}
	go func() {
		_ = s.Publish(p.to)
		cancel() // as gRPC does when a handler returns
	}()
	t.Cleanup(cancel)
	p.send(players.Hello(cluster, "e", head, semaphorev1.Kind_KIND_SET_MEMBER))
	return p
}

// send sends messages as fast as the broker reads them.
func (p *paced) send(all ...*semaphorev1.PublishRequest) {
	for _, m := range all {
		data, err := proto.Marshal(m)
		if err != nil {
			p.t.Error(err)
		}
		select {
		case p.to.in <- data:
		case <-p.ctx.Done():
			p.t.Error("the stream ended")
			return
		}
	}
}

// acked sends messages, and returns how long the broker took to acknowledge a revision.
func (p *paced) acked(revision uint64, all ...*semaphorev1.PublishRequest) time.Duration {
	began := time.Now()
	go p.send(all...)
	for {
		select {
		case m := <-p.to.out:
			if m.GetAck().GetRevision() >= revision {
				return time.Since(began)
			}
		case <-p.ctx.Done():
			p.t.Fatal("the stream ended")
		}
	}
}

// wholeAt is a snapshot at revision 1000.
func wholeAt(objects ...*semaphorev1.Object) []*semaphorev1.PublishRequest {
	return players.Snapshot(semaphorev1.Kind_KIND_SET_MEMBER, 1000, objects...)
}

// slowServer takes 20 changes a second of each remote, and 200 at once.
func slowServer(members int) *Server {
	var remotes []config.Remote
	for name, subnet := range map[string]string{"c2": "10.2.0.0/16", "c3": "10.3.0.0/16"} {
		remotes = append(remotes, config.Remote{
			Name: name, PodSubnets: []string{subnet}, PodPrefixes: []netip.Prefix{netip.MustParsePrefix(subnet)},
			Limits: config.Limits{ChangesPerSecond: 20, SetMembers: members, SetIPs: 10_000, IPsPerSet: 10_000,
				MebibytesPerKind: 64},
		})
	}
	return begun(Options{}, remotes, nil, Engines{})
}

// TestReasonsAreBounded: an exporter does not choose how much of its stream's end the broker keeps.
func TestReasonsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slowServer(10)
		e := publishTo(t, s, "c2")
		e.send(&semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_SnapshotUnchanged{
			SnapshotUnchanged: &semaphorev1.SnapshotUnchanged{Kind: semaphorev1.Kind_KIND_SET_MEMBER, Revision: 1000,
				Digest: make([]byte, MaxMessage-100)}}})
		<-e.ctx.Done()
		reason := s.Status()[0].GetLastError()
		if !strings.Contains(reason, "digest 0000") || len(reason) > 512 {
			t.Errorf("the last error has %d bytes: %.80s", len(reason), reason)
		}
		events := s.options.Recorder.Recent(1)
		if len(events) != 1 || events[0].GetAction() != "disconnect" || events[0].GetDetail() != reason {
			t.Errorf("%d events, of %d bytes", len(events), len(events[0].GetDetail()))
		}
	})
}

// R5: a snapshot is not paced, changes beyond the burst are, and another remote does not wait for them.
func TestR05ChangesArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slowServer(2000)
		fast, calm := publishTo(t, s, "c2"), publishTo(t, s, "c3")
		if took := fast.acked(1000, wholeAt(players.Members("10.2", 1000)...)...); took > 0 {
			t.Errorf("a snapshot of 1000 took %s", took)
		}
		calm.acked(1000, wholeAt()...)
		// At 20 a second, and 200 at once, 240 need 2 s. Acknowledgements may wait.
		if took := fast.acked(1240, players.Upserts(1001, players.Members("10.2", 240)...)); took < 2*time.Second ||
			took > 3*time.Second {
			t.Errorf("240 changes were taken within %s", took)
		}
		took := make(chan time.Duration, 1)
		go func() { took <- fast.acked(2240, players.Upserts(1241, players.Members("10.2", 1000)...)) }()
		for i := range uint64(20) {
			if took := calm.acked(1001+i, players.Upserts(1001+i, players.Members("10.3", 1)...)); took > time.Second {
				t.Errorf("change %d of another remote was taken after %s", i, took)
			}
		}
		if took := <-took; took < 40*time.Second {
			t.Errorf("1000 changes were taken within %s", took)
		}
		// The next stream does not wait for what the last one had still to wait for.
		flood, err := proto.Marshal(players.Upserts(2241, players.Members("10.2", 1000)...))
		if err != nil {
			t.Fatal(err)
		}
		fast.to.in <- flood
		synctest.Wait()
		next := publishAt(t, s, "c2", 4000)
		synctest.Wait() // the exporter sends nothing before the broker's answer
		all := append(players.Snapshot(semaphorev1.Kind_KIND_SET_MEMBER, 4000),
			players.Upserts(4001, players.Members("10.2", 1)...))
		if took := next.acked(4001, all...); took > time.Second || fast.ctx.Err() == nil {
			t.Errorf("a change on the next stream was taken after %s, the last one has ended with %v", took, fast.ctx.Err())
		}
	})
}

// R5: changes without effect, and snapshot objects over the limit, do not bypass the rate limit.
func TestR05ChangesWithoutEffectAreThrottled(t *testing.T) {
	unknown := &semaphorev1.PublishRequest{}
	unknown.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 1))
	noSnapshot := &semaphorev1.PublishRequest{} // snapshot_begin's number, with another wire type
	noSnapshot.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 1))
	empty := players.Changes()
	snapshot := wholeAt(players.Members("10.2", 250)...)
	for name, test := range map[string]struct {
		before, flood []*semaphorev1.PublishRequest
		ack           uint64
	}{
		"heartbeats, each a tenth of a second's changes": {wholeAt(),
			append(slices.Repeat([]*semaphorev1.PublishRequest{players.Beat(1000, 1000)}, 119), players.Beat(1001, 1001)), 1001},
		"messages of no known sort": {wholeAt(),
			append(slices.Repeat([]*semaphorev1.PublishRequest{unknown}, 239), players.Beat(1001, 1001)), 1001},
		"messages of another sort than their number's": {wholeAt(),
			append(slices.Repeat([]*semaphorev1.PublishRequest{noSnapshot}, 239), players.Beat(1001, 1001)), 1001},
		"changes that are none": {wholeAt(),
			append(slices.Repeat([]*semaphorev1.PublishRequest{empty}, 239), players.Beat(1001, 1001)), 1001},
		"nothing in a snapshot": {snapshot[:1], append(slices.Repeat([]*semaphorev1.PublishRequest{empty}, 240),
			players.End(semaphorev1.Kind_KIND_SET_MEMBER, 1000, 0)), 1000},
		"more in a snapshot than is held": {nil, snapshot, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := publishTo(t, slowServer(10), "c2")
				if len(test.before) > 1 {
					e.acked(1000, test.before...)
				} else {
					e.send(test.before...)
				}
				// 200 at once and 20 a second; a message of those before may have taken one.
				if took := e.acked(test.ack, test.flood...); took < 2*time.Second-100*time.Millisecond || took > 4*time.Second {
					t.Errorf("240 messages or objects were taken within %s", took)
				}
			})
		})
	}
}

// TestAWaitEndsWithItsStream: a stream that waits acknowledges before, and waits no longer than it lives.
func TestAWaitEndsWithItsStream(t *testing.T) {
	never, room, lives, ended := make(chan struct{}), make(chan struct{}), newStream(t.Context()), newStream(t.Context())
	ended.stop(errSuperseded)
	close(room)
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	unsent := errors.New("unsent")
	for _, c := range []struct {
		ctx   context.Context
		st    *stream
		until chan struct{}
		acks  error
		want  error
	}{
		{t.Context(), lives, room, nil, nil},
		{t.Context(), lives, never, unsent, unsent},
		{t.Context(), ended, never, nil, errSuperseded},
		{cut, lives, never, nil, errDisconnected},
	} {
		if err := await(c.ctx, c.st, c.until, func() error { return c.acks }); !errors.Is(err, c.want) {
			t.Errorf("%v, not %v", err, c.want)
		}
	}
}
