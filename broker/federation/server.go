// Package federation serves the exporters of remote clusters, and that of the own one: FederationService over mTLS. It
// lets each exporter speak for its own cluster only, keeps one replica for each cluster behind one lock, and hands
// what changes on, in order, to a Sink.
//
// Remotes share nothing here: one that is slow, hostile or gone costs the others nothing. The package
// knows neither Kubernetes nor what the changes lead to.
package federation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/program"
	"github.com/kube-semaphore/semaphore/internal/stream/wire"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// helloTimeout is how long a stream may take to say who it is: those that say nothing must not add up.
const helloTimeout = 10 * time.Second

const (
	// maxLife is how long a stream lives, and at least half of that. The exporter begins another, which costs no snapshot, and by
	// which it proves anew who it is: a key that was stolen or has expired, or whose root was taken out, is good no longer.
	maxLife = 40 * time.Minute
	// maxOpen is how many streams of a cluster may be open: the newest, one that it takes over from, and some whose end
	// has not been noticed.
	maxOpen = 4
)

// burst is how many seconds' worth of changes may come at once.
const burst = 10

// Sink follows what is held of the remotes. Take is called for each message that led to something: in
// order for one cluster, from several goroutines for several. It does not wait: the cluster's replica is locked meanwhile.
type Sink interface {
	Take(cluster string, r replica.Result)
}

// Options of a Server.
type Options struct {
	// Cluster is the own one.
	Cluster string
	Remotes []config.Remote
	// Own is what is taken of the own cluster's exporter, as if it were a remote; nil for nothing. See config.Broker.Own.
	Own *config.Remote
	// Local are the own cluster's subnets.
	Local []netip.Prefix
	Brake config.Brake
	// Due says whether something waits for a remote to tell all anew; nil for never. It is asked at heartbeats.
	Due func(cluster string) bool
	// LabelDomains are those of the labels of sets here; none where no sets are written.
	LabelDomains []string
	// Outcomes tells what became of the services of a cluster that it would not expect, by key; nil for nothing. It is asked at heartbeats.
	Outcomes func(cluster string) []*semaphorev1.Outcome
	// Warn tells people of the own cluster: a word and a sentence; nil for nobody.
	Warn func(reason, note string)
	Sink Sink
	// Room waits until the Sink has room for more of a cluster, before the next message is taken; waits is called before it does. Nil for a
	// Sink that always has.
	Room     func(ctx context.Context, cluster string, waits func() error) error
	Metrics  *Metrics
	Recorder *debug.Recorder
	Log      *slog.Logger
}

// Server is the broker's end of all Publish streams.
type Server struct {
	semaphorev1.UnimplementedFederationServiceServer
	options Options
	links   map[string]*link

	deliveries deliveries
}

// link is one cluster.
type link struct {
	cluster string
	// kinds that are taken of it.
	kinds   []semaphorev1.Kind
	mu      sync.Mutex
	replica *replica.Replica
	current *stream
	// changes and bytes limit how fast changes are read, and streams how often a stream begins.
	changes, bytes, streams *rate.Limiter
	// open is how many streams of the cluster are open.
	open int
	// since is when the link came to be connected, or not.
	since     time.Time
	lastHeard time.Time
	// spoke is when something other than a greeting last came: streams that only ever begin tell nothing of the remote. It is read
	// without the lock.
	spoke atomic.Pointer[time.Time]
	// connects is current != nil, to those who do not have the lock, and view what readers last saw.
	connects atomic.Bool
	view     atomic.Pointer[view]
	// hold is that of the brake.
	hold      time.Duration
	lastError string
	// of the stream that is or was there last
	address, software string
}

// stream is one Publish call.
type stream struct {
	session *replica.Session
	address string
	// ended is closed when the stream is to end, for why.
	ended chan struct{}
	once  sync.Once
	why   error
	// closed says that it has ended; the link's lock guards it and outcomes.
	closed   bool
	outcomes outcomes
}

// stop ends the stream, even while it waits for an exporter that reads nothing.
func (st *stream) stop(why error) {
	st.once.Do(func() {
		st.why = why
		close(st.ended)
	})
}

// New makes a server; nothing of any remote is held yet.
func New(options Options) *Server {
	s := &Server{options: options, links: map[string]*link{}}
	for i := range options.Remotes {
		var others []netip.Prefix
		for j := range options.Remotes {
			if j != i {
				others = append(others, options.Remotes[j].PodPrefixes...)
			}
		}
		s.add(&options.Remotes[i], replica.Kinds, admission.New(&options.Remotes[i], options.Local, others...))
	}
	if options.Own != nil {
		s.add(options.Own, []semaphorev1.Kind{semaphorev1.Kind_KIND_SERVICE, semaphorev1.Kind_KIND_ENDPOINT_SLICE}, admission.Own(options.Own))
	}
	if options.Metrics != nil {
		options.Metrics.links(s)
	}
	return s
}

func (s *Server) add(remote *config.Remote, kinds []semaphorev1.Kind, checker *admission.Checker) {
	l := &link{
		cluster: remote.Name,
		kinds:   kinds,
		replica: replica.New(remote.Name, s.options.Cluster, program.Version, checker.Check),
		since:   time.Now(),
		changes: limiter(float64(remote.Limits.ChangesPerSecond), burst*remote.Limits.ChangesPerSecond),
		bytes:   limiter(float64(remote.Limits.KibibytesPerSecond<<10), config.ByteBurst*remote.Limits.KibibytesPerSecond<<10),
		streams: limiter(float64(remote.Limits.StreamsPerMinute)/60, remote.Limits.StreamsPerMinute),
	}
	l.replica.Bound(remote.Limits, s.options.Brake)
	l.spoke.Store(&time.Time{})
	l.hold = s.options.Brake.Hold.Duration
	s.links[remote.Name] = l
}

// limiter is one of a limit; 0 for none.
func limiter(perSecond float64, burst int) *rate.Limiter {
	if perSecond == 0 {
		return rate.NewLimiter(rate.Inf, 1)
	}
	return rate.NewLimiter(rate.Limit(perSecond), burst)
}

// operates says whether an ID is an operator of this cluster, or a standby broker that carries one here.
func (s *Server) operates(id spiffeid.ID) bool {
	return id == identity.Semaphorectl(s.options.Cluster) || id == identity.Broker(s.options.Cluster)
}

// Authorize says whether an ID may connect at all: the exporters of the configured remotes, the own one where it is
// taken, the own operators, and the own standbys.
func (s *Server) Authorize(id spiffeid.ID) error {
	if s.exporterOf(id) != nil || s.operates(id) {
		return nil
	}
	if id == identity.Exporter(s.options.Cluster) {
		return fmt.Errorf("%s is this cluster's own exporter, which is taken only with globalServices.podSubnets", id)
	}
	return fmt.Errorf("%s is neither the exporter of a configured remote nor %s", id, identity.Semaphorectl(s.options.Cluster))
}

// AuthorizeMethod says whether an ID may call a method: exporters publish, operators look and release, and neither does both.
func (s *Server) AuthorizeMethod(ctx context.Context, method string) error {
	id, err := identity.PeerID(ctx)
	if err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	federation := strings.HasPrefix(method, "/"+semaphorev1.FederationService_ServiceDesc.ServiceName+"/")
	operating := strings.HasPrefix(method, "/"+semaphorev1.DebugService_ServiceDesc.ServiceName+"/") ||
		strings.HasPrefix(method, "/"+semaphorev1.ControlService_ServiceDesc.ServiceName+"/")
	if federation && s.exporterOf(id) != nil || operating && s.operates(id) {
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "%s may not call %s", id, method)
}

func (s *Server) exporterOf(id spiffeid.ID) *link {
	l, ok := s.links[identity.ClusterOf(id)]
	if !ok || id != identity.Exporter(l.cluster) {
		return nil
	}
	return l
}

// Publish implements semaphorev1.FederationServiceServer.
func (s *Server) Publish(call grpc.BidiStreamingServer[semaphorev1.PublishRequest, semaphorev1.PublishResponse]) error {
	id, err := identity.PeerID(call.Context())
	if err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	l := s.exporterOf(id)
	if l == nil {
		return status.Errorf(codes.PermissionDenied, "%s is not the exporter of a configured remote", id)
	}
	// Before anything is done for the stream, and before it can disturb one that is there.
	if !l.streams.Allow() {
		s.options.Metrics.limited(l.cluster, "streams")
		err := status.Errorf(codes.ResourceExhausted, "%s begins more than %d streams a minute (limits.streamsPerMinute of the remote)", id, l.streams.Burst())
		l.mu.Lock()
		if l.current == nil {
			l.lastError = status.Convert(err).Message()
		}
		l.mu.Unlock()
		return err
	}
	st := &stream{ended: make(chan struct{})}
	if p, ok := peer.FromContext(call.Context()); ok {
		st.address = p.Addr.String()
	}
	l.mu.Lock()
	if l.open >= maxOpen {
		l.mu.Unlock()
		s.options.Metrics.limited(l.cluster, "streams")
		return status.Errorf(codes.ResourceExhausted, "%s has %d streams open, which is the most", id, maxOpen)
	}
	l.open++
	st.session = l.replica.Open()
	l.mu.Unlock()
	life := time.AfterFunc(maxLife/2+rand.N(maxLife/2), func() { st.stop(errOld) })
	defer life.Stop()

	// Recv, and Send to an exporter that reads nothing, can be left only by the end of the call: what serve does
	// ends just after this function.
	go func() { st.stop(s.serve(l, st, call)) }()
	<-st.ended
	s.closed(l, st, st.why)
	return st.why
}

// errCut is the end of a stream that the exporter, the network or the broker's own end has cut.
var errCut = status.Error(codes.Canceled, "the connection was cut")

// errOld is the end of a stream that has lived as long as one may.
var errOld = status.Error(codes.Aborted, "the stream is as old as one may be: begin another")

var errSuperseded = status.Error(codes.Aborted, replica.ErrSuperseded.Error())

func (s *Server) serve(l *link, st *stream, call grpc.BidiStreamingServer[semaphorev1.PublishRequest, semaphorev1.PublishResponse]) error {
	in := newInbox()
	go in.fill(call)
	silent := time.NewTimer(helloTimeout)
	defer silent.Stop()
	var acks replica.Acks
	acknowledge := func() error {
		if m := acks.Flush(time.Now()); m != nil {
			return call.Send(m)
		}
		return nil
	}
	for {
		// The call's context is not asked: gRPC ends it also for a message that it does not take, and only Recv
		// tells that (RESOURCE_EXHAUSTED for one over the limit).
		var m message
		var more bool
		select {
		case m, more = <-in.messages:
		case <-st.ended:
			return st.why
		case <-silent.C:
			if st.session.Hello() == nil {
				return status.Errorf(codes.DeadlineExceeded, "no hello within %s", helloTimeout)
			}
			continue
		}
		switch {
		case more:
		case errors.Is(in.end, io.EOF):
			return nil
		case status.Code(in.end) == codes.Canceled:
			return errCut
		default:
			return in.end
		}
		// What may not come now is refused before it costs a wait or is decoded.
		if st.session.Hello() == nil && m.kind != helloField {
			return status.Errorf(codes.InvalidArgument, "%s before hello", m.name())
		}
		if err := s.pace(call.Context(), l, st, m, acknowledge); err != nil {
			return err
		}
		if err := s.room(call.Context(), l, st, acknowledge); err != nil {
			return err
		}
		responses, err := s.receive(l, st, m)
		in.taken(m)
		for _, m := range acks.Send(time.Now(), responses, len(in.messages) > 0) {
			if err := call.Send(m); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

// pace waits until a message may be taken by the limits of changes and bytes a second. Nothing is read meanwhile, so that
// gRPC's flow control holds the exporter back, which then sends the newest state of each object only. waits is called before the
// first wait.
func (s *Server) pace(ctx context.Context, l *link, st *stream, m message, waits func() error) error {
	l.mu.Lock() // what ends the stream closes the session meanwhile
	n := cost(st.session, m)
	l.mu.Unlock()
	if err := s.wait(ctx, l, st, l.changes, "changes", n, waits); err != nil {
		return err
	}
	return s.wait(ctx, l, st, l.bytes, "bytes", len(m.data), waits)
}

// wait takes n of what a limiter gives.
func (s *Server) wait(ctx context.Context, l *link, st *stream, limit *rate.Limiter, name string, n int, waits func() error) error {
	for slowed := false; n > 0; {
		part := min(n, max(1, limit.Burst()))
		reserved := limit.ReserveN(time.Now(), part)
		if delay := reserved.Delay(); delay > 0 {
			if !slowed {
				slowed = true
				s.options.Metrics.limited(l.cluster, name)
				if err := waits(); err != nil {
					reserved.Cancel()
					return err
				}
			}
			timer := time.NewTimer(delay)
			select {
			case <-timer.C:
			case <-st.ended:
				timer.Stop()
				reserved.Cancel()
				return st.why
			case <-ctx.Done():
				timer.Stop()
				reserved.Cancel()
				return errCut
			}
		}
		n -= part
	}
	return nil
}

// room waits until what this cluster's messages lead to has room. Nothing is read meanwhile, as in pace; waits is called before the wait.
func (s *Server) room(ctx context.Context, l *link, st *stream, waits func() error) error {
	if s.options.Room == nil {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var sent error
	err := s.options.Room(ctx, l.cluster, func() error {
		go func() { // ends with the wait
			select {
			case <-st.ended:
				cancel(st.why)
			case <-ctx.Done():
			}
		}()
		sent = waits()
		return sent
	})
	switch {
	case err == nil:
		return nil
	case sent != nil:
		return sent
	case context.Cause(ctx) == st.why && st.why != nil:
		return st.why
	}
	return errCut
}

// cost is how many changes a message counts for. A snapshot costs nothing for as many objects as may be held: it is
// bounded by that, and by how often streams begin. What leads to nothing, of which there could be any number, costs
// as much as a change.
func cost(session *replica.Session, m message) int {
	switch m.kind {
	case changesField:
		if m.changes > 0 && session.Staging() {
			return session.Beyond(m.changes)
		}
		return max(1, m.changes)
	case helloField, snapshotBeginField, snapshotEndField, snapshotUnchangedField:
		return 0 // a stream has one for each of its kinds
	}
	return 1
}

// receive takes one message into the replica and hands on what it led to.
func (s *Server) receive(l *link, st *stream, raw message) ([]*semaphorev1.PublishResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if st.closed || st.session.Hello() != nil && !st.session.Current() {
		return nil, errSuperseded
	}
	// Under the lock: of each cluster one message at a time is decoded.
	m := &semaphorev1.PublishRequest{}
	if err := wire.Decode(raw.data, m, maxDecoded); err != nil {
		return nil, err
	}
	now := time.Now()
	result, err := st.session.Receive(now, m)
	if errors.Is(err, replica.ErrSuperseded) {
		return nil, errSuperseded
	}
	for _, r := range result.Responses {
		if w := r.GetWelcome(); w != nil {
			w.LabelDomains = s.options.LabelDomains
		}
	}
	if st.session.Current() {
		l.lastHeard = now
		if err == nil && m.GetHello() == nil {
			l.spoke.Store(&now)
		}
		if l.current != st {
			s.opened(l, st, now)
		}
	}
	if m.GetHeartbeat() != nil && err == nil && st.session.Current() && l.cluster == s.options.Cluster {
		s.deliveries.take(now, m.GetHeartbeat().GetDeliveries())
	}
	s.follow(l, result)
	if err == nil && m.GetHeartbeat() != nil && st.session.Live() && s.options.Due != nil && s.options.Due(l.cluster) {
		err = l.replica.Anew(now, "what an earlier broker wrote is held back")
	}
	if m.GetHeartbeat() != nil && err == nil && st.session.Live() && s.options.Outcomes != nil {
		result.Responses = append(result.Responses, st.outcomes.news(s.options.Outcomes(l.cluster))...)
	}
	return result.Responses, err
}

// follow tells what a message led to, and hands it on. The caller holds l.mu.
func (s *Server) follow(l *link, r replica.Result) {
	s.tell(l, r)
	if len(r.Changes) > 0 || len(r.HeldBack) > 0 || len(r.Released) > 0 || len(r.Refused) > 0 || r.Completed != semaphorev1.Kind_KIND_UNSPECIFIED {
		s.options.Sink.Take(l.cluster, r)
	}
}

// Release lets go what the brake holds of a remote, of some kinds or of all; see ControlService.
func (s *Server) Release(cluster string, kinds ...semaphorev1.Kind) ([]replica.Released, error) {
	l, ok := s.links[cluster]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "%q is no configured remote", cluster)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	result := l.replica.Release(time.Now(), kinds...)
	s.follow(l, result)
	return result.Released, nil
}

// opened makes st the link's stream, once its Hello is accepted. The caller holds l.mu.
func (s *Server) opened(l *link, st *stream, now time.Time) {
	if l.current != nil {
		l.current.stop(errSuperseded)
	}
	l.current, l.since, l.lastError = st, now, ""
	l.connects.Store(true)
	l.address, l.software = st.address, st.session.Hello().GetSoftwareVersion()
	if line := s.domainsDiffer(l); line != "" && s.options.Warn != nil {
		s.options.Warn("LabelDomainsDiffer", line)
	}
	s.options.Log.Info("exporter connected", "cluster", l.cluster, "address", st.address, "version", l.software)
	s.options.Recorder.Record(debug.Event{Source: l.cluster, Object: "cluster " + l.cluster, Action: "connect", Detail: "from " + st.address})
}

func (s *Server) closed(l *link, st *stream, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	st.closed = true
	l.open--
	st.session.Close()
	detail := "closed by the exporter"
	if err != nil {
		detail = status.Convert(err).Message()
	}
	if l.current != st {
		if err == nil || errors.Is(err, errSuperseded) {
			return // the stream that took its place is told
		}
		// It never got as far as a good Hello.
		if l.current == nil {
			l.lastError = detail
		}
		s.options.Log.Warn("exporter refused", "cluster", l.cluster, "address", st.address, "error", detail)
		return
	}
	l.current, l.since, l.lastError = nil, time.Now(), detail
	l.connects.Store(false)
	level := slog.LevelWarn
	if errors.Is(err, errOld) {
		level = slog.LevelInfo // it comes back at once
	}
	s.options.Log.Log(context.Background(), level, "exporter disconnected; what it exported stays", "cluster", l.cluster, "address", st.address, "reason", detail)
	s.options.Recorder.Record(debug.Event{Source: l.cluster, Object: "cluster " + l.cluster, Action: "disconnect", Detail: detail})
}

// tell makes metrics and events of what a message led to.
func (s *Server) tell(l *link, r replica.Result) {
	for _, refused := range r.Refused {
		s.options.Metrics.refused(l.cluster, refused)
		s.options.Recorder.Record(debug.Event{Source: l.cluster, Object: refused.Key.String(), Action: "refuse", Detail: string(refused.Code) + ": " + refused.Reason})
	}
	for _, h := range r.HeldBack {
		name := semaphorev1.KindName(h.Kind)
		if h.Objects == h.Total {
			s.options.Log.Warn("the brake holds back a withdrawal", "cluster", l.cluster, "kind", name, "objects", h.Total, "of", h.Of)
		}
		s.options.Recorder.Record(debug.Event{Source: l.cluster, Object: name, Action: "hold-back", Detail: fmt.Sprintf("%d objects, %d in all, of %d that were exported", h.Objects, h.Total, h.Of)})
	}
	for _, released := range r.Released {
		name := semaphorev1.KindName(released.Kind)
		s.options.Log.Info("the brake lets go", "cluster", l.cluster, "kind", name, "objects", released.Objects, "why", released.Why)
		s.options.Recorder.Record(debug.Event{Source: l.cluster, Object: name, Action: "release", Detail: fmt.Sprintf("%d objects: %s", released.Objects, released.Why)})
	}
	if r.Completed != semaphorev1.Kind_KIND_UNSPECIFIED {
		name := semaphorev1.KindName(r.Completed)
		detail := fmt.Sprintf("%d objects, %d of them changes to what was held", r.Taken, len(r.Changes))
		if r.Unchanged {
			detail = fmt.Sprintf("%d objects, as they were", r.Taken)
		}
		s.options.Log.Info("took over a snapshot", "cluster", l.cluster, "kind", name, "objects", r.Taken, "changes", len(r.Changes), "unchanged", r.Unchanged)
		s.options.Recorder.Record(debug.Event{Source: l.cluster, Object: name, Action: "snapshot", Detail: detail})
		return
	}
	for _, c := range r.Changes {
		action := "receive"
		if c.New == nil {
			action = "receive-delete"
		}
		s.options.Metrics.change(l.cluster, c)
		s.options.Recorder.Record(debug.Event{Source: l.cluster, Object: c.Key.String(), Action: action, ObservedAt: c.ObservedAt})
	}
}

// Spoke is when each remote last said something that is no greeting; zero for never.
func (s *Server) Spoke() map[string]time.Time {
	out := make(map[string]time.Time, len(s.links))
	for cluster, l := range s.links {
		out[cluster] = *l.spoke.Load()
	}
	return out
}

// Status is what is known of each remote, in the order of their names.
func (s *Server) Status() []*semaphorev1.LinkStatus {
	var out []*semaphorev1.LinkStatus
	for _, v := range s.views() {
		out = append(out, proto.CloneOf(v.status))
	}
	return out
}

// views are what readers see of each link, in the order of their names. Who takes a message at the moment is waited for for a while,
// all links together.
func (s *Server) views() []*view {
	deadline := time.Now().Add(patience)
	var out []*view
	for _, cluster := range slices.Sorted(maps.Keys(s.links)) {
		out = append(out, s.links[cluster].look(deadline))
	}
	return out
}

// patience is how long a reader waits for the locks of links: a snapshot of 100,000 objects takes longer to be taken over.
const patience = 100 * time.Millisecond

// maxRefused is how many refusals of a remote are shown.
const maxRefused = 10

// view is what readers see of a link: never changed once made.
type view struct {
	status   *semaphorev1.LinkStatus
	heldBack []string
	refused  []replica.Refused
}

// look is the view of a link now or, while a message is being taken that takes longer than until the deadline, as it last was.
func (l *link) look(deadline time.Time) *view {
	for !l.mu.TryLock() {
		if v := l.view.Load(); v != nil && time.Now().After(deadline) {
			return v
		}
		time.Sleep(time.Millisecond)
	}
	defer l.mu.Unlock()
	v := &view{status: l.status()}
	for _, kind := range l.kinds {
		if line := l.heldBack(kind); line != "" {
			v.heldBack = append(v.heldBack, line)
		}
	}
	refused := l.replica.Refused()
	v.refused = slices.Clone(refused[:min(maxRefused, len(refused))])
	l.view.Store(v)
	return v
}

// status is that of the link. The caller holds l.mu.
func (l *link) status() *semaphorev1.LinkStatus {
	out := &semaphorev1.LinkStatus{
		Cluster: l.cluster, Address: l.address, Connected: l.current != nil,
		Since: timestamppb.New(l.since), LastError: l.lastError, SoftwareVersion: l.software,
	}
	if !l.lastHeard.IsZero() {
		out.LastHeard = timestamppb.New(l.lastHeard)
	}
	if l.current != nil {
		out.Behind = l.current.session.Behind()
	}
	for _, kind := range l.kinds {
		objects, refused := l.replica.Count(kind)
		k := &semaphorev1.KindStatus{
			Kind: semaphorev1.KindName(kind), Objects: uint64(objects), Refused: uint64(refused), Complete: l.replica.Complete(kind),
			Limit: uint64(l.replica.Limit(kind)),
		}
		if heard := l.replica.Heard(kind); !heard.IsZero() {
			k.LastHeard = timestamppb.New(heard)
		}
		if back := l.replica.HeldBack(kind, 0); back.Total > 0 {
			k.HeldBack, k.HeldBackSince = uint64(back.Total), timestamppb.New(back.Since)
		}
		out.Kinds = append(out.Kinds, k)
	}
	return out
}

// heldBack says what the brake holds of a kind, naming some of the objects; empty for nothing. The caller holds l.mu.
func (l *link) heldBack(kind semaphorev1.Kind) string {
	back := l.replica.HeldBack(kind, 3)
	if back.Total == 0 {
		return ""
	}
	var names []string
	for _, key := range back.Keys {
		names = append(names, key.String())
	}
	if back.Total > len(names) {
		names = append(names, fmt.Sprintf("%d more", back.Total-len(names)))
	}
	return fmt.Sprintf("held back since %s: cluster %s has withdrawn %s; they go when a whole snapshot lacks them after %s, or by `semaphorectl brake release %s`",
		back.Since.UTC().Format(time.RFC3339), l.cluster, strings.Join(names, ", "), l.hold, l.cluster)
}

// Describe is what status shows of all remotes: their links, and lines on what is held back and refused of each.
func (s *Server) Describe() (links []*semaphorev1.LinkStatus, problems []string) {
	for _, v := range s.views() {
		links = append(links, proto.CloneOf(v.status))
		problems = append(problems, v.heldBack...)
		for _, r := range v.refused {
			problems = append(problems, fmt.Sprintf("refused %s of cluster %s: %s (%s)", r.Key, v.status.GetCluster(), r.Reason, r.Code))
		}
	}
	return links, problems
}
