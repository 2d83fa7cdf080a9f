// Package federation serves the exporters of remote clusters and of the own cluster: FederationService over mTLS. It
// lets each exporter speak only for its own cluster, keeps one replica for each cluster behind one lock, and passes
// the changes, in order, to a Sink.
//
// Remotes share nothing here: a slow, hostile or failed remote costs the others nothing. The package knows neither
// Kubernetes nor the consumers of the changes.
package federation

import (
	"cmp"
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

	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/program"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// helloTimeout is how long a stream may take to send Hello, so that silent streams do not accumulate.
const helloTimeout = 10 * time.Second

const (
	// maxStreamAge is the upper bound of a stream's random age limit; the lower bound is half of it. The exporter
	// opens another, which costs no snapshot and proves its identity again: a certificate that expired, or whose root
	// was removed, is no longer accepted.
	maxStreamAge = 40 * time.Minute
	// maxOpen is how many streams of a cluster may be open: the newest, the one that it replaces, and some whose end
	// has not been noticed.
	maxOpen = 4
)

// burst is how many seconds' worth of changes may arrive together. beats is how many heartbeats count as the
// changes of a second: at each one the broker walks what is refused and retained, and all outcomes.
const burst, beats = 10, 10

// maxReason bounds the text of a stream's end, in bytes.
const maxReason = 512

// Sink receives the changes of replicas. Take is called for each message, also for one without an effect: in order for
// one cluster, concurrently for several. It must not block, as the cluster's replica is locked.
type Sink interface {
	Take(cluster string, r replica.Result)
}

type Options struct {
	// Cluster is the own cluster, and Local are its subnets.
	Cluster string
	Local   []netip.Prefix
	Brake   config.Brake
	// LabelDomains are the domains of the labels of sets here; empty if no sets are written.
	LabelDomains []string
	// Warn notifies the operators of the own cluster of a problem of a remote ("" for none), which its topic tells from
	// others, with a reason and a sentence; may be nil.
	Warn     func(cluster, topic string, reason finding.Code, note string) (accepted bool)
	Metrics  *Metrics
	Recorder *debug.Recorder
	Log      *slog.Logger
}

// Server is the broker's side of all Publish streams.
type Server struct {
	semaphorev1.UnimplementedFederationServiceServer
	options Options
	// links are by cluster. The map is replaced as a whole, and never modified.
	links atomic.Pointer[map[string]*link]
	// engines receive the held objects of the remotes; nil before Begin.
	engines *Engines

	// deliveries are the own exporter's last report of its deliveries to the brokers of other clusters; nil for none,
	// because the exporter's version sends none or no exporter is connected.
	deliveries atomic.Pointer[deliveries]
	sources    sources
}

// all returns the links by cluster. The map is never modified.
func (s *Server) all() map[string]*link { return *s.links.Load() }

// link is the state of one cluster over all its streams.
type link struct {
	cluster string
	// remote is the configuration; only Change uses it.
	remote  config.Remote
	kinds   []semaphorev1.Kind
	mu      sync.Mutex
	replica *replica.Replica
	// to receives the changes; nil once the remote is removed.
	to      *Engines
	current *stream
	// changes and bytes limit the rate of changes, and streams how often a stream is opened.
	changes, bytes, streams *rate.Limiter
	open                    int
	// since is when the link was last connected or disconnected.
	since     time.Time
	lastHeard time.Time
	// lastPayload is when a message other than Hello last arrived, as streams that only begin say nothing about the
	// remote. It is read without the lock.
	lastPayload atomic.Pointer[time.Time]
	// isConnected is current != nil for readers without the lock, and view is the last view.
	isConnected atomic.Bool
	view        atomic.Pointer[view]
	lastError   string
	// loggedRefusal is the reason in the last log message about a rejected stream; empty after a stream that was
	// accepted.
	loggedRefusal string
	// address and software belong to the current or last stream.
	address, software string
	// refusedSource is the UID of the last cluster that was refused because another one stands, refusedAt and refusedFrom
	// are when and from where its exporter last tried.
	refusedSource string
	refusedAt     time.Time
	refusedFrom   string
}

// stream is one Publish call.
type stream struct {
	session *replica.Session
	address string
	// ctx ends when the stream must end, and its cause is why: the first reason for which stop was called, even while the
	// stream sends to an exporter that does not read.
	ctx  context.Context
	stop context.CancelCauseFunc
	// closed means that the stream has ended; the link's lock guards it and outcomes.
	closed   bool
	outcomes outcomes
}

func newStream(call context.Context) *stream {
	ctx, stop := context.WithCancelCause(context.WithoutCancel(call))
	return &stream{ctx: ctx, stop: stop}
}

// New makes a server that accepts no remote before Begin.
func New(options Options) *Server {
	if options.Warn == nil {
		options.Warn = func(string, string, finding.Code, string) bool { return true }
	}
	s := &Server{options: options}
	s.links.Store(&map[string]*link{})
	options.Metrics.reg.MustRegister(collector{s})
	return s
}

// newLink makes the link of a remote without held objects.
func (s *Server) newLink(remote config.Remote, kinds []semaphorev1.Kind, admit replica.Admit) *link {
	l := &link{
		cluster: remote.Name,
		remote:  remote,
		to:      s.engines,
		kinds:   kinds,
		replica: replica.New(remote.Name, s.options.Cluster, program.Version, admit),
		since:   time.Now(),
	}
	l.limit(remote.Limits)
	l.replica.SetLimits(remote.Limits, s.options.Brake)
	l.lastPayload.Store(&time.Time{})
	return l
}

// limit makes or changes the limiters of the link; a new one has a full bucket.
func (l *link) limit(limits config.Limits) {
	for _, of := range []struct {
		limiter   **rate.Limiter
		perSecond float64
		burst     int
	}{
		{&l.changes, float64(limits.ChangesPerSecond), burst * limits.ChangesPerSecond},
		{&l.bytes, float64(limits.KibibytesPerSecond << 10), config.ByteBurst * limits.KibibytesPerSecond << 10},
		{&l.streams, float64(limits.StreamsPerMinute) / 60, limits.StreamsPerMinute},
	} {
		limit := rate.Limit(of.perSecond)
		if limit == 0 { // no limit
			limit, of.burst = rate.Inf, 1
		}
		if *of.limiter == nil {
			*of.limiter = rate.NewLimiter(limit, of.burst)
		}
		(*of.limiter).SetLimit(limit)
		(*of.limiter).SetBurst(of.burst)
	}
}

// isOperator reports whether an ID is an operator of this cluster, or a standby broker that relays one here.
func (s *Server) isOperator(id spiffeid.ID) bool {
	return id == identity.Semaphorectl(s.options.Cluster) || id == identity.Broker(s.options.Cluster)
}

// Authorize returns an error unless an ID may connect: the exporters of the configured remotes, the own exporter if it
// is accepted, the own operators and the own standbys.
func (s *Server) Authorize(id spiffeid.ID) error {
	if s.exporterOf(id) != nil || s.isOperator(id) {
		return nil
	}
	if id == identity.Exporter(s.options.Cluster) {
		return fmt.Errorf("%s is this cluster's own exporter, which is taken only with globalServices.podSubnets", id)
	}
	return fmt.Errorf("%s is neither the exporter of a configured remote nor %s", id,
		identity.Semaphorectl(s.options.Cluster))
}

// AuthorizeMethod returns an error unless an ID may call a method: exporters publish, operators read and control, and
// neither does both.
func (s *Server) AuthorizeMethod(ctx context.Context, method string) error {
	id, err := identity.PeerID(ctx)
	if err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	federation := strings.HasPrefix(method, "/"+semaphorev1.FederationService_ServiceDesc.ServiceName+"/")
	operating := strings.HasPrefix(method, "/"+semaphorev1.DebugService_ServiceDesc.ServiceName+"/") ||
		strings.HasPrefix(method, "/"+semaphorev1.ControlService_ServiceDesc.ServiceName+"/")
	if federation && s.exporterOf(id) != nil || operating && s.isOperator(id) {
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "%s may not call %s", id, method)
}

func (s *Server) exporterOf(id spiffeid.ID) *link {
	l, ok := s.all()[identity.ClusterOf(id)]
	if !ok || id != identity.Exporter(l.cluster) {
		return nil
	}
	return l
}

// Publish implements semaphorev1.FederationServiceServer. It fails with Unauthenticated without a certificate,
// PermissionDenied for another caller than the exporter of a configured remote, and ResourceExhausted for more streams
// than limits.streamsPerMinute; later errors are those of Session.Receive.
func (s *Server) Publish(call grpc.BidiStreamingServer[semaphorev1.PublishRequest, semaphorev1.PublishResponse]) error {
	id, err := identity.PeerID(call.Context())
	if err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	l := s.exporterOf(id)
	if l == nil {
		return status.Errorf(codes.PermissionDenied, "%s is not the exporter of a configured remote", id)
	}
	// This comes before any work for the stream, and before it can affect the current stream.
	if !l.streams.Allow() {
		s.options.Metrics.limited(l.cluster, "streams")
		err := status.Errorf(codes.ResourceExhausted,
			"%s opens more than %d streams a minute (limits.streamsPerMinute of the remote)", id, l.streams.Burst())
		l.mu.Lock()
		if l.current == nil {
			l.lastError = status.Convert(err).Message()
		}
		l.mu.Unlock()
		return err
	}
	st := newStream(call.Context())
	if p, ok := peer.FromContext(call.Context()); ok {
		st.address = p.Addr.String()
	}
	l.mu.Lock()
	if l.open >= maxOpen {
		l.mu.Unlock()
		s.options.Metrics.limited(l.cluster, "streams")
		return status.Errorf(codes.ResourceExhausted, "%s has %d streams open, which is the limit", id, maxOpen)
	}
	l.open++
	st.session = l.replica.Open()
	l.mu.Unlock()
	life := time.AfterFunc(maxStreamAge/2+rand.N(maxStreamAge/2), func() { st.stop(errTooOld) })
	defer life.Stop()

	// Recv, and Send to an exporter that does not read, return only when the call ends: the goroutine ends just after
	// this function.
	go func() { st.stop(s.serve(l, st, call)) }()
	<-st.ctx.Done()
	why := context.Cause(st.ctx)
	if errors.Is(why, io.EOF) {
		why = nil // the exporter has closed it
	}
	s.streamClosed(l, st, why)
	return why
}

// errDisconnected ends a stream that the exporter, the network or this broker has cut.
var errDisconnected = status.Error(codes.Canceled, "the connection was cut")

var errTooOld = status.Error(codes.Aborted, "the stream reached its age limit: open another")

var errSuperseded = status.Error(codes.Aborted, replica.ErrSuperseded.Error())

func (s *Server) serve(l *link, st *stream, call grpc.BidiStreamingServer[semaphorev1.PublishRequest,
	semaphorev1.PublishResponse]) error {
	in := newInbox()
	go in.fill(call)
	noHello := time.After(helloTimeout)
	var acks replica.Acks
	acknowledge := func() error {
		if m := acks.Flush(time.Now()); m != nil {
			return call.Send(m)
		}
		return nil
	}
	for {
		// The call's context is not checked: gRPC cancels it also for a message over the limit, and only Recv returns
		// that error (RESOURCE_EXHAUSTED).
		var m message
		var more bool
		select {
		case m, more = <-in.messages:
		case <-st.ctx.Done():
			return context.Cause(st.ctx)
		case <-noHello:
			if st.session.Hello() == nil {
				return status.Errorf(codes.DeadlineExceeded, "no hello within %s", helloTimeout)
			}
			continue
		}
		switch {
		case more:
		case status.Code(in.end) == codes.Canceled:
			return errDisconnected
		default:
			return in.end
		}
		// Check what may arrive now before the message costs a wait or is decoded.
		if st.session.Hello() == nil && m.kind != helloField {
			return status.Errorf(codes.InvalidArgument, "%s before hello", m.name())
		}
		if err := s.pace(call.Context(), l, st, m, acknowledge); err != nil {
			return err
		}
		responses, err := s.receive(l, st, m)
		in.release(m)
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

// pace waits until the limits of changes and bytes per second permit a message, and then until the Sink has room for
// its changes. Nothing is read meanwhile, so that gRPC's flow control stops the exporter, which later sends only the
// newest state of each object. waits is called before each wait.
func (s *Server) pace(ctx context.Context, l *link, st *stream, m message, waits func() error) error {
	l.mu.Lock() // closing the session takes the lock, too
	n, to := l.rateLimitUnits(st.session, m), l.to
	l.mu.Unlock()
	if err := s.wait(ctx, l, st, l.changes, "changes", n, waits); err != nil {
		return err
	}
	if err := s.wait(ctx, l, st, l.bytes, "bytes", len(m.data), waits); err != nil || to == nil || to.Room == nil {
		return err
	}
	for room := to.Room(l.cluster); room != nil; room = to.Room(l.cluster) {
		if err := await(ctx, st, room, waits); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) wait(ctx context.Context, l *link, st *stream, limit *rate.Limiter, name string, n int,
	waits func() error) error {
	for slowed := false; n > 0; {
		part := min(n, max(1, limit.Burst()))
		reserved := limit.ReserveN(time.Now(), part)
		if delay := reserved.Delay(); delay > 0 {
			if !slowed {
				slowed = true
				s.options.Metrics.limited(l.cluster, name)
			}
			if err := await(ctx, st, time.After(delay), waits); err != nil {
				reserved.Cancel()
				return err
			}
		}
		n -= part
	}
	return nil
}

// await waits until a channel delivers or is closed; an error is why the stream ends before.
func await[T any](ctx context.Context, st *stream, until <-chan T, waits func() error) error {
	if err := waits(); err != nil {
		return err
	}
	select {
	case <-until:
		return nil
	case <-st.ctx.Done():
		return context.Cause(st.ctx)
	case <-ctx.Done():
		return errDisconnected
	}
}

// rateLimitUnits returns how many changes a message counts for. A snapshot up to the limit of objects is free, as that
// limit and the limit of streams bound it. Messages without effect, whose number has no bound, count as one change.
func (l *link) rateLimitUnits(session *replica.Session, m message) int {
	switch m.kind {
	case heartbeatField:
		return max(1, l.changes.Burst()/burst/beats)
	case changesField:
		if m.changes > 0 && session.Staging() {
			return session.OverLimit(m.changes)
		}
		return max(1, m.changes)
	case helloField, snapshotBeginField, snapshotEndField, snapshotUnchangedField:
		return 0 // a stream has one for each of its kinds
	}
	return 1
}

func (s *Server) receive(l *link, st *stream, raw message) ([]*semaphorev1.PublishResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.to == nil {
		return nil, errRemoved
	}
	if st.closed || st.session.Hello() != nil && !st.session.Current() {
		return nil, errSuperseded
	}
	// Under the lock, so that one message of each cluster is decoded at a time.
	m := &semaphorev1.PublishRequest{}
	if err := streams.Decode(raw.data, m, MaxDecoded); err != nil {
		return nil, err
	}
	now := time.Now()
	if hello := m.GetHello(); hello != nil {
		if err := s.checkSource(l, st, hello, now); err != nil {
			return nil, err
		}
	}
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
			l.lastPayload.Store(&now)
		}
		if l.current != st {
			s.streamOpened(l, st, now)
		}
	}
	if m.GetHeartbeat() != nil && err == nil && st.session.Current() && l.cluster == s.options.Cluster {
		s.setDeliveries(now, m.GetHeartbeat().GetDeliveries())
	}
	s.deliver(l, result)
	beat := err == nil && m.GetHeartbeat() != nil && st.session.Live() && l.to != nil
	if beat && l.to.ResyncDue != nil && l.to.ResyncDue(l.cluster) {
		err = l.replica.Resync(now, "the broker retains objects that an earlier broker wrote")
	}
	if beat && err == nil && l.to.Outcomes != nil {
		// The outcomes precede the Ack, which marks their end.
		result.Responses = append(st.outcomes.diff(l.to.Outcomes(l.cluster)), result.Responses...)
	}
	return result.Responses, err
}

// deliver records a result, and passes its changes to the Sink. The caller must hold l.mu.
func (s *Server) deliver(l *link, r replica.Result) {
	s.record(l, r)
	if l.to != nil {
		l.to.Sink.Take(l.cluster, r)
	}
}

// Release removes the objects of a remote that the brake retains, of some kinds or of all; see ControlService. The
// error is codes.NotFound for a cluster that is no remote.
func (s *Server) Release(cluster string, kinds ...semaphorev1.Kind) ([]replica.Released, error) {
	l, ok := s.all()[cluster]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "%q is not a configured remote", cluster)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var released []replica.Released
	for _, of := range semaphorev1.Kinds {
		if len(kinds) == 0 || slices.Contains(kinds, of) {
			result := l.replica.Release(time.Now(), of)
			s.deliver(l, result)
			released = append(released, result.Released...)
		}
	}
	return released, nil
}

// streamOpened makes st the link's current stream after its Hello was accepted. The caller must hold l.mu.
func (s *Server) streamOpened(l *link, st *stream, now time.Time) {
	if l.current != nil {
		l.current.stop(errSuperseded)
	}
	l.current, l.since, l.lastError, l.loggedRefusal = st, now, "", ""
	l.isConnected.Store(true)
	l.address, l.software = st.address, st.session.Hello().GetSoftwareVersion()
	if uid := uidOf(st.session.Hello().GetSourceId()); uid != "" && l.cluster != s.options.Cluster {
		s.sources.learn(l.cluster, uid)
	}
	if line := s.labelDomainsProblem(l); line != "" {
		s.options.Warn("", line, finding.LabelDomainsDiffer, line)
	}
	s.options.Log.Info("exporter connected", "cluster", l.cluster, "address", st.address, "version", l.software)
	s.options.Recorder.Record(debug.Event{Source: l.cluster, Object: "cluster " + l.cluster, Action: "connect",
		Detail: "from " + st.address})
}

func (s *Server) streamClosed(l *link, st *stream, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	st.closed = true
	l.open--
	st.session.Close()
	detail := "closed by the exporter"
	if err != nil {
		detail = finding.CleanTo(status.Convert(err).Message(), maxReason)
	}
	if l.current != st {
		if err == nil || errors.Is(err, errSuperseded) {
			return // the stream that replaced it was logged
		}
		// Its Hello was never accepted. An exporter retries, so each reason is logged only once.
		if l.current == nil {
			l.lastError = detail
		}
		if l.loggedRefusal != detail {
			s.options.Log.Warn("the broker rejects an exporter", "cluster", l.cluster, "address", st.address, "error", detail)
		}
		l.loggedRefusal = detail
		return
	}
	l.current, l.since, l.lastError = nil, time.Now(), detail
	l.isConnected.Store(false)
	level := slog.LevelWarn
	if errors.Is(err, errTooOld) {
		level = slog.LevelInfo // the exporter opens another immediately
	}
	s.options.Log.Log(context.Background(), level, "exporter disconnected; the broker keeps its objects", "cluster",
		l.cluster, "address", st.address, "reason", detail)
	s.options.Recorder.Record(debug.Event{Source: l.cluster, Object: "cluster " + l.cluster, Action: "disconnect",
		Detail: detail})
}

// record updates the metrics, and writes log messages and Events, for a result.
func (s *Server) record(l *link, r replica.Result) {
	for _, refused := range r.Refused {
		s.options.Warn(l.cluster, "Refused "+refused.Key.String()+" "+string(refused.Code), finding.Refused,
			fmt.Sprintf("%s of cluster %s: %s (%s)", refused.Key, l.cluster, refused.Reason, refused.Code))
		s.options.Metrics.refused(l.cluster, refused)
		s.options.Recorder.Record(debug.Event{Source: l.cluster, Object: refused.Key.String(), Action: "refuse",
			Detail: string(refused.Code) + ": " + refused.Reason, ObservedAt: refused.ObservedAt})
	}
	for _, h := range r.Retained {
		name := semaphorev1.KindName(h.Kind)
		if h.Objects == h.Total || h.Unexported { // those that follow belong to the same withdrawal
			until := s.options.Brake.Until(l.cluster, h.Unexported)
			s.options.Warn(l.cluster, "Retained "+name, finding.Retained, fmt.Sprintf(
				"cluster %s withdrew so many %ss that the broker retains %d of %d %s", l.cluster, name, h.Total, h.Peak, until))
			s.options.Log.Warn("the brake retains withdrawn objects "+until, "cluster", l.cluster, "kind", name, "objects",
				h.Total, "of", h.Peak)
		}
		s.options.Recorder.Record(debug.Event{Source: l.cluster, Object: name, Action: "hold-back",
			Detail: fmt.Sprintf("%d objects, %d in total, of %d that were exported", h.Objects, h.Total, h.Peak)})
	}
	for _, released := range r.Released {
		name := semaphorev1.KindName(released.Kind)
		s.options.Log.Info("the brake releases objects", "cluster", l.cluster, "kind", name, "objects", released.Objects,
			"why", released.Reason)
		s.options.Recorder.Record(debug.Event{Source: l.cluster, Object: name, Action: "release",
			Detail: fmt.Sprintf("%d objects: %s", released.Objects, released.Reason)})
	}
	if r.Completed != semaphorev1.Kind_KIND_UNSPECIFIED && !l.replica.Retained(r.Completed, 0).Unexported {
		name := semaphorev1.KindName(r.Completed)
		detail := fmt.Sprintf("%d objects, %d changes to the replica", r.Taken, len(r.Changes))
		if r.Unchanged {
			detail = fmt.Sprintf("%d objects, unchanged", r.Taken)
		}
		s.options.Log.Info("applied a snapshot", "cluster", l.cluster, "kind", name, "objects", r.Taken, "changes",
			len(r.Changes), "unchanged", r.Unchanged)
		s.options.Recorder.Record(debug.Event{Source: l.cluster, Object: name, Action: "snapshot", Detail: detail})
		return
	}
	for _, c := range r.Changes {
		action := "receive"
		if c.New == nil {
			action = "receive-delete"
		}
		s.options.Metrics.change(l.cluster, c)
		s.options.Recorder.Record(debug.Event{Source: l.cluster, Object: c.Key.String(), Action: action,
			ObservedAt: c.ObservedAt})
	}
}

// LastPayload returns when each remote last sent a message other than Hello; zero for never.
func (s *Server) LastPayload() map[string]time.Time {
	out := make(map[string]time.Time, len(s.all()))
	for cluster, l := range s.all() {
		out[cluster] = *l.lastPayload.Load()
	}
	return out
}

// Status returns the status of each remote, sorted by name.
func (s *Server) Status() []*semaphorev1.LinkStatus {
	var out []*semaphorev1.LinkStatus
	for _, v := range s.views() {
		out = append(out, proto.CloneOf(v.status))
	}
	return out
}

// views returns the view of each link, sorted by name. It waits at most viewTimeout, for all links together, while
// links handle messages.
func (s *Server) views() []*view {
	deadline := time.Now().Add(viewTimeout)
	var out []*view
	links := s.all()
	for _, cluster := range slices.Sorted(maps.Keys(links)) {
		out = append(out, s.currentView(links[cluster], deadline))
	}
	return out
}

// Refused returns the code and the key of the first refused object of each remote that has one.
func (s *Server) Refused() map[string]string {
	all := map[string]string{}
	for _, v := range s.views() {
		if v.refused != "" {
			all[v.status.GetCluster()] = v.refused
		}
	}
	return all
}

// viewTimeout bounds how long a reader waits for the locks of links: applying a snapshot of 100,000 objects takes
// longer.
const viewTimeout = 100 * time.Millisecond

// view is what readers see of a link; immutable.
type view struct {
	status *semaphorev1.LinkStatus
	// refused is the code and the key of the first refused object; empty for none.
	refused  string
	findings []finding.Finding
	// omitted is how many outcomes of its services the cluster does not receive.
	omitted uint64
}

// currentView returns the view of a link now, or the last one if the link handles a message until after the deadline.
func (s *Server) currentView(l *link, deadline time.Time) *view {
	for !l.mu.TryLock() {
		if v := l.view.Load(); v != nil && time.Now().After(deadline) {
			return v
		}
		time.Sleep(time.Millisecond)
	}
	defer l.mu.Unlock()
	v := &view{status: l.status(), omitted: l.omitted()}
	v.status.SourceId = s.sources.of(l.cluster)
	second := s.secondSource(l, time.Now())
	if second != "" {
		v.status.RefusedSourceId = cmp.Or(l.refusedSource, "unknown")
	}
	refused := l.replica.Refused()
	if len(refused) > 0 {
		v.refused = fmt.Sprintf("%s %s", refused[0].Code, refused[0].Key)
	}
	v.findings = refusals(l.cluster, refused)
	for _, kind := range l.kinds {
		if line := s.retainedProblem(l, kind); line != "" {
			v.findings = append(v.findings, finding.Detail(finding.Retained, l.cluster, []string{line})...)
		}
	}
	v.findings = append(v.findings, finding.Line(finding.SourceRefused, l.cluster, second)...)
	v.findings = append(v.findings, finding.Line(finding.LabelDomainsDiffer, l.cluster, s.labelDomainsProblem(l))...)
	v.findings = append(v.findings, finding.Line(finding.OutcomesOmitted, l.cluster, l.omittedProblem())...)
	l.view.Store(v)
	return v
}

// RefusedOf returns the refused objects of a remote; none of one that is not configured.
func (s *Server) RefusedOf(cluster string) []replica.Refused {
	l := s.all()[cluster]
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replica.Refused()
}

// status returns the status of the link. The caller must hold l.mu.
func (l *link) status() *semaphorev1.LinkStatus {
	out := &semaphorev1.LinkStatus{
		Cluster: l.cluster, Address: l.address, Connected: l.current != nil,
		Since: timestamppb.New(l.since), LastError: l.lastError, SoftwareVersion: l.software,
	}
	out.LastHeard = semaphorev1.Time(l.lastHeard)
	if l.current != nil {
		out.Behind = l.current.session.Behind()
	}
	for _, kind := range l.kinds {
		objects, refused := l.replica.Count(kind)
		k := &semaphorev1.KindStatus{
			Kind: kind, Objects: uint64(objects), Refused: uint64(refused), Complete: l.replica.Complete(kind),
			Limit: uint64(l.replica.Limit(kind)), LastHeard: semaphorev1.Time(l.replica.LastHeard(kind)),
			AwaitedSince: semaphorev1.Time(l.replica.AwaitedSince(kind)),
		}
		back := l.replica.Retained(kind, 0)
		if l.to != nil && l.to.Retained != nil {
			if n, since := l.to.Retained(l.cluster, kind); n > 0 { // others than the replica retains, and before them
				back.Total, back.Since = back.Total+n, since
			}
		}
		if back.Total > 0 {
			k.Retained, k.RetainedSince = uint64(back.Total), timestamppb.New(back.Since)
		}
		out.Kinds = append(out.Kinds, k)
	}
	return out
}

// retainedProblem describes the objects of a kind that the brake retains, and names some; empty for none. The caller
// must hold l.mu.
func (s *Server) retainedProblem(l *link, kind semaphorev1.Kind) string {
	back := l.replica.Retained(kind, 3)
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
	return fmt.Sprintf("retained since %s, %s: cluster %s has withdrawn %s",
		back.Since.UTC().Format(time.RFC3339), s.options.Brake.Until(l.cluster, back.Unexported), l.cluster,
		strings.Join(names, ", "))
}
