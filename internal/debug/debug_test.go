package debug

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func record(r *Recorder, from, to int) {
	for i := from; i < to; i++ {
		r.Record(Event{Object: fmt.Sprint("service shop/", i), Action: "update"})
	}
}

func TestRecorderFillsInWho(t *testing.T) {
	r := NewRecorder("agent", "c1", "")
	before := time.Now()
	r.Record(Event{Source: "c2", Object: "peer c2/n1", Action: "create", Detail: "key", ObservedAt: before})
	r.SetNode("n1")
	r.Record(Event{Object: "device wireguard.c2"})
	events, lost, next, err := r.after(t.Context(), 0)
	if err != nil || lost != 0 || next != 2 || len(events) != 2 {
		t.Fatalf("%d events, %d lost, next %d, %v", len(events), lost, next, err)
	}
	e := events[0]
	if e.Part != "agent" || e.Cluster != "c1" || e.Node != "" || e.Source != "c2" || e.Object != "peer c2/n1" ||
		e.Action != "create" || e.Detail != "key" {
		t.Errorf("event %v", e)
	}
	if !e.ObservedAt.AsTime().Equal(before) || e.Time.AsTime().Before(before) ||
		time.Since(e.Time.AsTime()) > time.Minute {
		t.Errorf("times of event %v", e)
	}
	if events[1].Node != "n1" || events[1].ObservedAt != nil {
		t.Errorf("event %v", events[1])
	}
}

// A reader that falls behind loses the oldest and learns how many; one that begins with
// the recent past does not get what was before it.
func TestRecorderRing(t *testing.T) {
	for _, test := range []struct {
		name               string
		recorded, position int
		first, lost        int
	}{
		{"nothing lost", remembered, 0, 0, 0},
		{"one lost", remembered + 1, 0, 1, 1},
		{"many rounds", 5*remembered + 7, 0, 4*remembered + 7, 4*remembered + 7},
		{"from the middle", 2 * remembered, remembered - 5, remembered, 5},
		{"just in time", 2 * remembered, remembered, remembered, 0},
		{"almost up to date", 3 * remembered, 3*remembered - 1, 3*remembered - 1, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := NewRecorder("broker", "c1", "")
			record(r, 0, test.recorded)
			events, lost, next, err := r.after(t.Context(), uint64(test.position))
			if err != nil || int(lost) != test.lost || int(next) != test.recorded || len(events) != test.recorded-test.first {
				t.Fatalf("%d events, %d lost, next %d, %v; want %d, %d, %d", len(events), lost, next, err, test.recorded-test.first,
					test.lost, test.recorded)
			}
			for i, e := range events {
				if want := fmt.Sprint("service shop/", test.first+i); e.Object != want {
					t.Fatalf("event %d is of %s; want %s", i, e.Object, want)
				}
			}
		})
	}
	r := NewRecorder("broker", "c1", "")
	if got := r.position(true); got != 0 {
		t.Errorf("recent past of nothing begins at %d", got)
	}
	record(r, 0, remembered+3)
	if recent, now := r.position(true), r.position(false); recent != 3 || now != remembered+3 {
		t.Errorf("positions %d and %d; want 3 and %d", recent, now, remembered+3)
	}
}

func TestRecorderWaits(t *testing.T) {
	r := NewRecorder("broker", "c1", "")
	ctx, cancel := context.WithCancel(t.Context())
	type answer struct {
		events []*semaphorev1.Event
		err    error
	}
	answers := make(chan answer, 2)
	wait := func(ctx context.Context) {
		events, _, _, err := r.after(ctx, 0)
		answers <- answer{events, err}
	}
	go wait(t.Context())
	go wait(t.Context())
	time.Sleep(10 * time.Millisecond)
	r.Record(Event{Object: "x"})
	for range 2 {
		if a := <-answers; a.err != nil || len(a.events) != 1 {
			t.Errorf("%d events, %v", len(a.events), a.err)
		}
	}
	go func() { _, _, _, err := r.after(ctx, 1); answers <- answer{nil, err} }()
	cancel()
	if a := <-answers; a.err != context.Canceled {
		t.Errorf("after the end of its context: %v", a.err)
	}
}

// Many record while readers of any speed read: each event is either read, in order, or
// counted as lost.
func TestRecorderConcurrent(t *testing.T) {
	const writers, each, readers = 4, 5000, 4
	r := NewRecorder("broker", "c1", "")
	var writing, reading sync.WaitGroup
	for w := range writers {
		writing.Go(func() { record(r, w*each, (w+1)*each) })
	}
	for n := range readers {
		reading.Go(func() {
			var got, position uint64
			for position < writers*each {
				events, lost, next, err := r.after(t.Context(), position)
				if err != nil || next <= position || lost+uint64(len(events)) != next-position {
					t.Errorf("from %d: %d events, %d lost, next %d, %v", position, len(events), lost, next, err)
					return
				}
				for _, e := range events {
					if e == nil {
						t.Error("an event that is none")
						return
					}
				}
				got, position = got+lost+uint64(len(events)), next
				time.Sleep(time.Duration(n) * time.Millisecond)
			}
			if got != writers*each {
				t.Errorf("%d events read or lost; want %d", got, writers*each)
			}
		})
	}
	writing.Wait()
	reading.Wait()
}

func TestNilRecorder(t *testing.T) {
	var r *Recorder
	r.Record(Event{Object: "x"})
	r.SetNode("n1")
}

// serve runs ServeSocket and returns a client, and what stops the server.
func serve(t *testing.T, path string, srv semaphorev1.DebugServiceServer) (client semaphorev1.DebugServiceClient,
	stop func()) {
	t.Helper()
	stop = testkit.Run(t, func(ctx context.Context) error { return ServeSocket(ctx, path, srv) })
	conn := testkit.Value(grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() { conn.Close() })
	return semaphorev1.NewDebugServiceClient(conn), stop
}

func TestServeSocket(t *testing.T) {
	r := NewRecorder("agent", "c1", "n1")
	srv := NewServer(r, func() *semaphorev1.GetStatusResponse {
		return &semaphorev1.GetStatusResponse{Ready: true, Problems: []string{"peer c2/n1: no handshake"}, Part: "nonsense"}
	}, Answers{})
	path := filepath.Join(t.TempDir(), "new", "agent.sock")
	client, stop := serve(t, path, srv)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	s := testkit.Value(client.GetStatus(ctx, &semaphorev1.GetStatusRequest{}, grpc.WaitForReady(true)))(t)
	if s.Part != "agent" || s.Cluster != "c1" || s.Node != "n1" || s.SoftwareVersion != program.Version || !s.Ready ||
		len(s.Problems) != 1 {
		t.Errorf("status %v", s)
	}
	if s.StartedAt.AsTime().After(s.Now.AsTime()) || time.Since(s.Now.AsTime()) > time.Minute {
		t.Errorf("started %v, now %v", s.StartedAt.AsTime(), s.Now.AsTime())
	}
	info := testkit.Value(os.Stat(path))(t)
	if info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("mode %v; want a socket that only its owner may open", info.Mode())
	}

	record(r, 0, 3)
	recent := testkit.Value(client.Watch(ctx, &semaphorev1.WatchRequest{Recent: true}))(t)
	for i := range 3 {
		expectEvent(t, recent, fmt.Sprint("service shop/", i))
	}
	// The content of a name from elsewhere must not end the stream.
	r.Record(Event{Object: "service shop/\xff", Detail: "\xc3"})
	expectEvent(t, recent, "service shop/\uFFFD")
	record(r, 4, 5)
	expectEvent(t, recent, "service shop/4")

	stop()
	if _, err := recent.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("a stream after the end of the server: %v", err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

func expectEvent(t *testing.T, stream grpc.ServerStreamingClient[semaphorev1.WatchResponse], object string) {
	t.Helper()
	m := testkit.Value(stream.Recv())(t)
	if m.GetEvent().GetObject() != object {
		t.Fatalf("%v; want an event of %s", m, object)
	}
}

// A reader that stops reading holds up nobody, and learns afterwards what it lost.
func TestWatchOfSlowReader(t *testing.T) {
	r := NewRecorder("broker", "c1", "")
	client, _ := serve(t, filepath.Join(t.TempDir(), "s"),
		NewServer(r, func() *semaphorev1.GetStatusResponse { return &semaphorev1.GetStatusResponse{} }, Answers{}))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	record(r, 0, 1) // so that the stream is known to exist
	stream := testkit.Value(client.Watch(ctx, &semaphorev1.WatchRequest{Recent: true}, grpc.WaitForReady(true)))(t)
	expectEvent(t, stream, "service shop/0")
	const all = 50_000 // several times what gRPC's windows hold
	detail := strings.Repeat("x", 200)
	recorded := make(chan struct{})
	go func() {
		defer close(recorded)
		for i := range all {
			r.Record(Event{Object: fmt.Sprint(i), Detail: detail})
		}
	}()
	select {
	case <-recorded: // nobody has read meanwhile
	case <-time.After(time.Minute):
		t.Fatalf("recording %d events waits for a reader that does not read", all)
	}
	got, lost := 0, 0
	for got+lost < all {
		m := testkit.Value(stream.Recv())(t)
		if n := m.GetLost(); n > 0 {
			lost += int(n)
			continue
		}
		if want := fmt.Sprint(got + lost); m.GetEvent().GetObject() != want {
			t.Fatalf("event of %s; want %s", m.GetEvent().GetObject(), want)
		}
		got++
	}
	if got+lost != all || lost == 0 || got < remembered {
		t.Errorf("%d read and %d lost of %d", got, lost, all)
	}
}

// A reader that goes away leaves nothing running at the server.
func TestWatchEndsWithReader(t *testing.T) {
	r := NewRecorder("broker", "c1", "")
	ended := make(chan struct{})
	srv := endings{NewServer(r, nil, Answers{}), ended}
	client, _ := serve(t, filepath.Join(t.TempDir(), "s"), srv)
	ctx, cancel := context.WithCancel(t.Context())
	record(r, 0, 1)
	stream := testkit.Value(client.Watch(ctx, &semaphorev1.WatchRequest{Recent: true}, grpc.WaitForReady(true)))(t)
	expectEvent(t, stream, "service shop/0")
	cancel()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("Watch continues without its reader")
	}
}

// endings reports when a Watch has ended.
type endings struct {
	semaphorev1.DebugServiceServer
	ended chan<- struct{}
}

func (e endings) Watch(req *semaphorev1.WatchRequest,
	stream grpc.ServerStreamingServer[semaphorev1.WatchResponse]) error {
	defer close(e.ended)
	return e.DebugServiceServer.Watch(req, stream)
}

func TestSocketLeftBehind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	old := testkit.Value(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))(t)
	old.SetUnlinkOnClose(false) // as a process that is killed
	old.Close()
	client, _ := serve(t, path,
		NewServer(NewRecorder("broker", "c1", ""),
			func() *semaphorev1.GetStatusResponse { return &semaphorev1.GetStatusResponse{} }, Answers{}))
	// Until the old one is replaced, nobody answers there.
	testkit.Eventually(t, time.Minute, "the new part answers", func() error {
		_, err := client.GetStatus(t.Context(), &semaphorev1.GetStatusRequest{}, grpc.WaitForReady(true))
		return err
	})
}

func TestServeSocketRefusesWhatIsNoSocket(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "precious")
	testkit.Must(t, os.WriteFile(file, []byte("x"), 0o600))
	link := filepath.Join(dir, "link")
	testkit.Must(t, os.Symlink(file, link))
	empty := filepath.Join(dir, "empty")
	testkit.Must(t, os.Mkdir(empty, 0o755))
	for _, path := range []string{file, link, empty, filepath.Join(file, "below")} {
		if err := ServeSocket(t.Context(), path, NewServer(nil, nil, Answers{})); err == nil ||
			!strings.Contains(err.Error(), file) &&
				!strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v; want an error that names it", path, err)
		}
		if _, err := os.Lstat(strings.TrimSuffix(path, "/below")); err != nil {
			t.Errorf("%s was removed", path)
		}
	}
	if err := ServeSocket(t.Context(), filepath.Join(dir, strings.Repeat("x", 200)),
		NewServer(nil, nil, Answers{})); err == nil {
		t.Error("a path longer than unix(7) allows was served")
	}
}

func TestServeSocketOff(t *testing.T) {
	if err := ServeSocket(t.Context(), "", nil); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	path := filepath.Join(t.TempDir(), "s")
	if err := ServeSocket(ctx, path, NewServer(NewRecorder("broker", "c1", ""), nil, Answers{})); err != nil {
		t.Errorf("after the end of its context: %v", err)
	}
}

// One source displaces no event of another, and events come in their order whatever their source.
func TestASourceFillsItsOwnBuffer(t *testing.T) {
	r := NewRecorder("broker", "c1", "")
	r.Record(Event{Source: "c3", Object: "first"})
	for i := range 3 * remembered {
		r.Record(Event{Source: "c2", Object: fmt.Sprint(i)})
	}
	r.Record(Event{Source: "c3", Object: "last"})
	events, lost, next, err := r.after(t.Context(), r.position(true))
	if err != nil || len(events) != remembered+2 || lost != 2*remembered || next != 3*remembered+2 {
		t.Fatalf("%d events, %d lost, next %d, %v", len(events), lost, next, err)
	}
	if events[0].GetObject() != "first" || events[1].GetObject() != fmt.Sprint(2*remembered) ||
		events[remembered+1].GetObject() != "last" {
		t.Errorf("%v, %v ... %v", events[0], events[1], events[remembered+1])
	}
	for i := range 2 * maxSources {
		r.Record(Event{Source: fmt.Sprint("s", i)})
	}
	if len(r.rings) > maxSources+1 {
		t.Errorf("%d sources have events of their own", len(r.rings))
	}
}
