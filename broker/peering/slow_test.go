package peering

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// serve serves on loopback, with agents who are whom their tokens say.
func serve(t *testing.T, s *Server) (dial func() *grpc.ClientConn) {
	t.Helper()
	l := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	g := grpc.NewServer(append(ServerOptions(), grpc.StreamInterceptor(auth.StreamServerInterceptor(s.Authenticate)))...)
	semaphorev1.RegisterPeeringServiceServer(g, s)
	testkit.Run(t, func(ctx context.Context) error {
		context.AfterFunc(ctx, g.Stop)
		return g.Serve(l)
	})
	return func() *grpc.ClientConn {
		// The windows are those that gRPC begins with, and do not grow: what is in flight is known.
		conn := testkit.Value(grpc.NewClient("passthrough:///"+l.Addr().String(),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10)))(t)
		t.Cleanup(func() { conn.Close() })
		return conn
	}
}

// readers are agents of a broker that read.
type readers struct {
	server *Server
	dial   func() *grpc.ClientConn
	// seen is the round that each of them has of the last peer, and news has an element after a change of it.
	seen [4]atomic.Int64
	news chan struct{}
}

const slowPeers = 200

// allowed is what a peer of a round has.
func allowed(round int) string { return fmt.Sprint(round, " ", strings.Repeat("x", 500)) }

func newReaders(t *testing.T) *readers {
	t.Helper()
	r := &readers{news: make(chan struct{}, 1)}
	r.server, _ = newReviewed()
	r.dial = serve(t, r.server)
	for i := range r.seen {
		stream := attach(t, r.dial(), fmt.Sprintf("n%d/a", i))
		go func() {
			for {
				m, err := stream.Recv()
				if err != nil {
					return
				}
				for _, c := range m.GetChanges().GetChanges() {
					if p := c.GetPeer(); p.GetKey().GetNode() == fmt.Sprintf("p%03d", slowPeers-1) {
						var round int64
						fmt.Sscan(p.GetAllowedIps()[0], &round)
						r.seen[i].Store(round)
						select {
						case r.news <- struct{}{}:
						default:
						}
					}
				}
			}
		}()
	}
	return r
}

// round changes all peers, and returns how long it takes until all have the last one.
func (r *readers) round(t *testing.T, round int) time.Duration {
	t.Helper()
	nodes := make([]string, slowPeers)
	for i := range nodes {
		nodes[i] = fmt.Sprintf("p%03d %s", i, allowed(round))
	}
	start := time.Now()
	become(r.server.options.State, "c2", meshOf("c2", nodes...), nil)
	late := time.After(3 * time.Minute)
	for i := range r.seen {
		for r.seen[i].Load() < int64(round) {
			select {
			case <-r.news:
			case <-late:
				t.Fatalf("round %d has not come to agent %d", round, i)
			}
		}
	}
	return time.Since(start)
}

// F25: an agent that stops reading costs the broker no memory but what is in flight, and the others no time, as
// another broker shows that has no such agent and gets the same in turn; and when it reads again it receives the newest
// states only.
func TestAnAgentThatStopsReading(t *testing.T) {
	free, with := newReaders(t), newReaders(t)
	s := with.server
	const peers, warm, rounds = slowPeers, 20, 80
	heap := func() int64 {
		// Twice, because what gRPC keeps in pools survives once.
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for round := 1; round < warm; round++ {
		free.round(t, round)
		with.round(t, round)
	}
	stuck := attach(t, with.dial(), "stuck/a")
	before := heap()
	var alone, beside []time.Duration
	for round := warm; round < rounds; round++ {
		alone, beside = append(alone, free.round(t, round)), append(beside, with.round(t, round))
	}
	grown := heap() - before
	slices.Sort(alone)
	slices.Sort(beside)
	// The backlog is a window, a message and what the collector has not seen yet: far less than what was sent.
	const total = (rounds - warm) * peers * 500
	if grown > total/4 {
		t.Errorf("the heap has grown by %d bytes for one who reads nothing of %d", grown, total)
	}
	median := func(d []time.Duration) time.Duration { return d[len(d)/2] }
	t.Logf("heap grown by %d KiB; median %s without it, %s beside it; slowest %s and %s", grown>>10, median(alone),
		median(beside), alone[len(alone)-1], beside[len(beside)-1])
	if median(beside) > 5*median(alone)+5*time.Millisecond {
		t.Errorf("a change takes %s to the others beside one who reads nothing, and %s without", median(beside),
			median(alone))
	}
	if p := s.Status(nil, expected); len(p) != len(with.seen)+1 {
		t.Errorf("%d attached", len(p))
	}
	// It reads again.
	changes, newest := 0, map[string]string{}
	for len(newest) < peers || !all(newest, allowed(rounds-1)) {
		m := testkit.Value(stuck.Recv())(t)
		for _, c := range m.GetChanges().GetChanges() {
			changes++
			if p := c.GetPeer(); p != nil {
				newest[p.Key.Node] = p.AllowedIps[0]
			}
		}
	}
	// The bytes on their way when it stopped, at most a whole message, and the newest state of each object.
	if most := 2*maxBatch + peers; changes > most {
		t.Errorf("%d changes were sent to one who had read nothing of %d, and %d is the most", changes,
			(rounds-warm)*peers, most)
	}
}

func all(m map[string]string, want string) bool {
	for _, v := range m {
		if v != want {
			return false
		}
	}
	return true
}
