// Package publish fills a cluster's catalog, and sends it to each broker over a stream. It opens a new stream whenever
// one ends, until the exporter ends.
//
// Session implements the protocol without I/O. Publishers of different brokers share only the journal.
//
// The Watcher keeps the catalog current with the cluster's apiserver. It reads (get, list, watch) and never writes. The
// catalog decides the exports; the Watcher knows which objects these need.
package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/program"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// HeartbeatInterval is the longest time between two messages to a broker, outside of tests.
const HeartbeatInterval = 5 * time.Second

// welcomeTimeout is how long a broker may take to answer Hello.
const welcomeTimeout = 10 * time.Second

// Limits of what a broker sends: another cluster is not trusted.
const (
	// maxAnswer and maxDecoded bound a message on the wire and in memory. The largest message of a broker is an outcome
	// or a refusal, of a few KiB.
	maxAnswer  = 64 << 10
	maxDecoded = 512 << 10
	// window bounds what gRPC buffers of a connection, and maxHeaders the headers and the status of a stream.
	window     = 256 << 10
	maxHeaders = 64 << 10
	maxReason  = 512
	// maxUnexported outcomes of Services that are not exported are kept.
	maxUnexported = 1000
	// maxOutcomes is a broker's own limit of the outcomes that it reports.
	maxOutcomes = 10_000
	// maxLogged refusals are logged as warnings at once, and then one in logEvery. The others are logged at level debug.
	// Events, metrics and status contain all.
	maxLogged = 20
	logEvery  = 3 * time.Second
	// A broker may send answersBurst messages at once and answersPerSecond in the long run; a message counts once more
	// for each answerShare bytes. The burst is for a broker that refuses all of a large cluster.
	answersPerSecond, answersBurst = 10_000, 100_000
	answerShare                    = 256
)

type Publisher struct {
	cluster      string
	term         uint64
	broker       config.ExporterBroker
	certificates *identity.Source
	catalog      *catalog.Catalog
	recorder     *debug.Recorder
	metrics      *Metrics
	log          *slog.Logger
	options      Options

	// notBefore is the head of the journal when the broker was added: its state of an earlier time may lack objects that
	// were not exported to it since.
	notBefore uint64

	mu sync.Mutex
	// requiredRevision is the resourceVersion by kind from which on the source may be sent to this broker; see
	// LagError.
	requiredRevision map[semaphorev1.Kind]uint64
	// reportedSource is the newest resourceVersion by kind that was reported to this broker.
	reportedSource map[semaphorev1.Kind]uint64
	session        *Session // of the current stream, nil if there is none
	// acked is the time of the last acknowledgement on the current stream.
	acked        time.Time
	since        time.Time
	lastReceived time.Time
	lastError    string
	// otherStands: the broker refused the last stream, because another cluster stands under this one's name.
	otherStands bool
	refused     map[catalog.Key]refusal
	// outcomes are the broker's reports about Services that it accepted, on the current stream or the last one.
	outcomes map[catalog.Key]outcome
	// omitted is how many more there are.
	omitted uint64
	// verdictChanges counts streams, refusals, outcomes and acknowledgements; see VerdictVersion.
	verdictChanges uint64
	// logs are the refusals that may be logged as warnings, and answers the messages that the broker may send, over all
	// streams.
	logs, answers *rate.Limiter
	codes         codes
}

// refusal and outcome are the kept parts of the broker's messages of these names. Nothing else is kept: the broker
// chooses what a message contains.
type refusal struct {
	code, reason string
	revision     uint64
}

type outcome struct {
	code, reason string
	// conflicts and conflict are only from the own broker.
	conflicts []string
	conflict  string
}

// Options are what publishers may lack, except for Source.
type Options struct {
	// Source is waited for: a kind is sent once it has read the kind.
	Source Source
	// Heartbeat is the longest time between two messages to the broker; HeartbeatInterval if it is zero.
	Heartbeat time.Duration
	// Deliveries are those to other clusters, which heartbeats report to the broker of the own cluster, and one more
	// heartbeat when ReportNow has a value.
	Deliveries func() []*semaphorev1.Delivery
	ReportNow  <-chan struct{}
	// Disconnected is called when a stream that the broker accepted has ended.
	Disconnected func()
}

// New makes the publisher of cluster's catalog to one broker. term is the term of the exporter's Lease, 0 without
// leader election.
func New(cluster string, term uint64, broker config.ExporterBroker, source *identity.Source, c *catalog.Catalog,
	rec *debug.Recorder, metrics *Metrics, o Options) *Publisher {
	if o.Heartbeat == 0 {
		o.Heartbeat = HeartbeatInterval
	}
	p := &Publisher{
		cluster: cluster, term: term, broker: broker, certificates: source, catalog: c, recorder: rec, metrics: metrics,
		log:   slog.With("broker", broker.Cluster, "address", broker.Address),
		since: time.Now(), refused: map[catalog.Key]refusal{}, outcomes: map[catalog.Key]outcome{},
		logs:    rate.NewLimiter(rate.Every(logEvery), maxLogged),
		answers: rate.NewLimiter(answersPerSecond, answersBurst),
		codes:   codes{},
		options: o, requiredRevision: map[semaphorev1.Kind]uint64{}, notBefore: c.Journal().Head(),
	}
	metrics.connected.WithLabelValues(broker.Cluster).Set(0)
	return p
}

// Forget deletes the series of the broker. It must be called after Run.
func (p *Publisher) Forget() { p.metrics.forget(p.broker.Cluster) }

func (p *Publisher) Broker() config.ExporterBroker { return p.broker }

// Run sends streams to the broker, one after the other, until ctx ends, and returns ctx's error.
func (p *Publisher) Run(ctx context.Context) error {
	return streams.Keep(ctx, streams.End{
		Address: p.broker.Address, Others: p.broker.OtherAddresses,
		TLS: p.certificates.ClientTLS(identity.Broker(p.broker.Cluster)),
		Options: []grpc.DialOption{
			grpc.WithDefaultCallOptions(grpc.UseCompressor(gzip.Name), grpc.MaxCallRecvMsgSize(maxAnswer),
				grpc.ForceCodecV2(streams.Codec{Most: maxDecoded})),
			// Without fixed windows gRPC buffers up to 16 MiB of unread messages.
			grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
			grpc.WithMaxHeaderListSize(maxHeaders),
			grpc.WithStreamInterceptor(p.metrics.client.StreamClientInterceptor()),
			grpc.WithStatsHandler(wireBytes{p.metrics.bytes.WithLabelValues(p.broker.Cluster)}),
		},
	}, p.stream, func(err error) { p.streamEnded(p.certificates.Refused(err)) })
}

// stream runs one stream from Hello to its end. The error is never nil.
func (p *Publisher) stream(ctx context.Context, conn *grpc.ClientConn) error {
	kinds, err := p.waitForKinds(ctx)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	stream, err := semaphorev1.NewFederationServiceClient(conn).Publish(ctx)
	if err != nil {
		return err
	}
	s := NewSession(p.cluster, p.broker.Cluster, program.Version, p.term, p.options.Source, kinds, p.catalog.Journal())
	s.notBefore, s.earlierSource = p.notBefore, p.reportedSource
	rules := p.catalog.Rules()
	s.Exports(rules.KindsFor(p.broker.Cluster))
	if rules.Features.Has(config.Policy) {
		s.labelDomains = rules.LabelDomains
	}
	if err := stream.Send(s.Hello()); err != nil {
		return streams.Reason(stream.Recv)
	}
	// more wakes the sender after a message of the broker, which may permit the next send.
	more := make(chan struct{}, 1)
	g.Go(func() error { return p.receive(ctx, stream, s, more) })
	g.Go(func() error { return p.send(ctx, stream, s, more) })
	g.Go(func() error { return p.watchKinds(ctx, kinds) })
	err = s.named(g.Wait())
	p.reportedSource = s.reportedRevisions()
	if lag := (*LagError)(nil); errors.As(err, &lag) {
		p.recordLag(lag)
	} else if !errors.Is(err, errMoreKinds) {
		// The broker may have lost objects, for example by a restart: ask it again for its state.
		p.mu.Lock()
		clear(p.requiredRevision)
		p.mu.Unlock()
	}
	return err
}

func (p *Publisher) receive(ctx context.Context, stream semaphorev1.FederationService_PublishClient, s *Session,
	more chan<- struct{}) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := p.answers.WaitN(ctx, 1+proto.Size(m)/answerShare); err != nil {
			return err
		}
		p.mu.Lock()
		was, acked, answered, answeredAt := s.welcomed, s.acked, s.answered, s.answeredAt
		acknowledged, err := s.Receive(m)
		if s.acked != acked || s.answeredAt != answeredAt || answered == 0 && s.answered > 0 {
			p.verdictChanges++
		}
		p.lastReceived = time.Now()
		p.mu.Unlock()
		if err != nil {
			return err
		}
		if !was && s.welcomed {
			p.streamStarted(s)
		}
		p.handleReceived(m, acknowledged)
		select {
		case more <- struct{}{}:
		default:
		}
	}
}

func (p *Publisher) send(ctx context.Context, stream semaphorev1.FederationService_PublishClient, s *Session,
	more <-chan struct{}) error {
	beat := time.NewTicker(p.options.Heartbeat)
	defer beat.Stop()
	late := time.NewTimer(welcomeTimeout)
	defer late.Stop()
	for {
		p.mu.Lock()
		m, err := s.Next()
		cursor, welcomed := s.cursor, s.welcomed
		p.mu.Unlock()
		if err != nil {
			return err
		}
		if m == nil {
			var changed <-chan struct{}
			if welcomed {
				changed = p.catalog.Journal().Changed(cursor)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-changed:
				continue
			case <-more:
				continue
			case <-late.C:
				if welcomed {
					continue
				}
				return fmt.Errorf("the broker of %s has not answered hello for %s", p.broker.Cluster, welcomeTimeout)
			case <-p.options.ReportNow:
			case <-beat.C:
			}
			if !welcomed {
				continue
			}
			p.mu.Lock()
			m = s.Heartbeat()
			p.mu.Unlock()
			if p.options.Deliveries != nil {
				m.GetHeartbeat().Deliveries = p.options.Deliveries()
			}
		}
		at := time.Now() // the broker may have it before Send returns
		if err := stream.Send(m); err != nil {
			// Recv, in the other goroutine, returns the reason.
			<-ctx.Done()
			return ctx.Err()
		}
		p.recordSent(m, at)
	}
}

// streamStarted records that the broker accepted the stream.
func (p *Publisher) streamStarted(s *Session) {
	p.mu.Lock()
	p.session, p.since, p.lastError, p.acked, p.otherStands = s, time.Now(), "", time.Time{}, false
	p.verdictChanges++
	how := "with a snapshot"
	if s.resumed {
		how = fmt.Sprintf("resumed after revision %d", s.acked)
	} else {
		// The broker checks every object of a snapshot again.
		clear(p.refused)
	}
	p.omitted = 0
	clear(p.outcomes) // the broker reports them with its answer to the first heartbeat
	p.mu.Unlock()
	p.metrics.connected.WithLabelValues(p.broker.Cluster).Set(1)
	p.recorder.Record(debug.Event{Source: p.broker.Cluster, Object: "broker " + p.broker.Cluster, Action: "connect",
		Detail: how})
	p.log.Info("the broker accepted the stream", "how", how, "version", s.peerSoftware)
}

// streamEnded records that a stream, or the attempt to open one, ended.
func (p *Publisher) streamEnded(err error) {
	reason := truncate(errorText(err)) // the broker chose it
	p.mu.Lock()
	p.verdictChanges++
	was := p.session != nil
	repeated := p.lastError == reason
	if was {
		p.session, p.since = nil, time.Now()
	}
	p.lastError, p.otherStands = reason, status.Code(err) == grpccodes.AlreadyExists
	p.mu.Unlock()
	p.metrics.connected.WithLabelValues(p.broker.Cluster).Set(0)
	p.metrics.streamsEnded.WithLabelValues(p.broker.Cluster).Inc()
	if was && p.options.Disconnected != nil {
		p.options.Disconnected()
	}
	if was || !repeated {
		p.recorder.Record(debug.Event{Source: p.broker.Cluster, Object: "broker " + p.broker.Cluster, Action: "disconnect",
			Detail: reason})
		p.log.Warn("the stream to the broker ended or failed; the exporter retries", "error", reason)
	}
}

// errorText returns the text of an error without gRPC's prefix.
func errorText(err error) string {
	if errors.Is(err, io.EOF) {
		return "the broker ended the stream"
	}
	if s, ok := status.FromError(err); ok {
		return fmt.Sprintf("%s (%s)", s.Message(), s.Code())
	}
	return err.Error()
}

func (p *Publisher) handleReceived(m *semaphorev1.PublishResponse, acknowledged []sentMessage) {
	switch m := m.GetMessage().(type) {
	case *semaphorev1.PublishResponse_Ack:
		p.mu.Lock()
		p.acked = time.Now()
		p.mu.Unlock()
		p.metrics.ackedRevision.WithLabelValues(p.broker.Cluster).Set(float64(m.Ack.GetRevision()))
		p.metrics.ackAt.WithLabelValues(p.broker.Cluster).SetToCurrentTime()
		for _, of := range acknowledged {
			p.metrics.acknowledged.WithLabelValues(p.broker.Cluster).Observe(time.Since(of.observedAt).Seconds())
		}
	case *semaphorev1.PublishResponse_Refusal:
		p.recordRefusal(m.Refusal)
	case *semaphorev1.PublishResponse_Outcome:
		p.recordOutcome(m.Outcome)
	}
}

func (p *Publisher) recordRefusal(r *semaphorev1.Refusal) {
	k := r.GetKey()
	key := catalog.Key{Kind: k.GetKind(), Namespace: k.GetNamespace(), Name: k.GetName()}
	if since, exported := p.catalog.ExportedSince(p.broker.Cluster, key); !exported || r.GetRevision() < since {
		return // it was deleted or changed since, or never exported
	}
	reason := truncate(r.GetReason())
	p.mu.Lock()
	code := p.codes.label(r.GetCode())
	was := p.refused[key]
	p.refused[key] = refusal{code, reason, r.GetRevision()}
	if was.code == code && was.reason == reason { // a stream that resumes repeats it
		p.mu.Unlock()
		return
	}
	p.verdictChanges++
	level := slog.LevelDebug
	if p.logs.Allow() {
		level = slog.LevelWarn
	}
	p.mu.Unlock()
	p.metrics.refused.WithLabelValues(p.broker.Cluster, semaphorev1.KindName(key.Kind), code).Inc()
	p.recorder.Record(debug.Event{Source: p.broker.Cluster, Object: key.String(), Action: "refuse",
		Detail: reason})
	p.log.Log(context.Background(), level, "the broker refuses an object", "object", key, "code", code, "reason", reason)
}

// maxKey is the length of the longest namespace and name of a Service together.
const maxKey = 63 + 63

// truncate bounds a line with text from another cluster's broker.
func truncate(text string) string { return finding.CleanTo(text, maxReason) }

func (p *Publisher) recordOutcome(o *semaphorev1.Outcome) {
	k := o.GetKey()
	if k == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.omitted = o.GetOmitted()
		return
	}
	key := catalog.Key{Kind: k.GetKind(), Namespace: k.GetNamespace(), Name: k.GetName()}
	if key.Kind != semaphorev1.Kind_KIND_SERVICE || len(key.Namespace)+len(key.Name) > maxKey {
		return
	}
	_, exported := p.catalog.ExportedSince(p.broker.Cluster, key)
	p.mu.Lock()
	defer p.mu.Unlock()
	if o.GetCode() == "" {
		p.verdictChanges++
		delete(p.outcomes, key)
		return
	}
	// One that was deleted may be exported again before the next heartbeat: the broker does not repeat its outcome.
	room := len(p.outcomes) < maxUnexported || exported && len(p.outcomes) < maxOutcomes
	if _, known := p.outcomes[key]; !known && !room {
		return
	}
	p.verdictChanges++
	kept := outcome{code: p.codes.label(o.GetCode()), reason: truncate(o.GetReason())}
	if p.broker.Cluster == p.cluster { // another cluster decides nothing about the imports of this one
		kept.conflicts, kept.conflict = o.GetConflicts(), truncate(o.GetConflict())
	}
	p.outcomes[key] = kept
	p.recorder.Record(debug.Event{Source: p.broker.Cluster, Object: key.String(), Action: "outcome",
		Detail: kept.reason})
}

// Verdict returns the broker's objection to an object at a revision, empty for none. known is false while the broker
// has not answered: it refuses an object before it acknowledges the revision, and reports an outcome before it
// acknowledges a later heartbeat.
func (p *Publisher) Verdict(key catalog.Key, revision uint64) (objection string, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.session
	if s == nil || !slices.Contains(s.kinds, key.Kind) || len(s.snapshots) > 0 || s.acked < revision {
		return "", false
	}
	if r, refused := p.refused[key]; refused {
		return r.reason, true
	}
	if s.answered == 0 || s.answeredAt < revision {
		return "", false
	}
	return p.outcomes[key].reason, true
}

// Conflict returns how an exported Service differs from those of other clusters, as the reasons of the condition
// Conflict of KEP-1645 with a sentence; none for no conflict. Only the own broker reports it.
func (p *Publisher) Conflict(key catalog.Key) (reasons []string, message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.outcomes[key].conflicts, p.outcomes[key].conflict
}

// VerdictVersion changes whenever the result of Verdict may change.
func (p *Publisher) VerdictVersion() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.verdictChanges
}

// recordSent counts changes that were sent at a time. A refusal of an older state of an object no longer applies.
func (p *Publisher) recordSent(m *semaphorev1.PublishRequest, at time.Time) {
	for _, change := range m.GetChanges().GetChanges() {
		k, action := change.GetDelete(), "delete"
		if up := change.GetUpsert(); up != nil {
			k, action = up.GetKey(), "export"
		}
		key := catalog.Key{Kind: k.GetKind(), Namespace: k.GetNamespace(), Name: k.GetName()}
		p.metrics.changes.WithLabelValues(p.broker.Cluster, semaphorev1.KindName(key.Kind)).Inc()
		p.recorder.Record(debug.Event{
			Source: p.cluster, Object: key.String(), Action: action, To: p.broker.Cluster, Detail: "to " + p.broker.Cluster,
			ObservedAt: change.GetObservedAt().AsTime(), At: at,
		})
		p.forgetRefusal(key, change.GetRevision(), change.GetUpsert() == nil)
	}
}

func (p *Publisher) forgetRefusal(key catalog.Key, revision uint64, gone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// The broker may have refused this revision already. It refuses no deletion, whatever revision it names.
	if r, ok := p.refused[key]; ok && (gone || r.revision < revision) {
		delete(p.refused, key)
	}
}

// ackTimeout is the greatest age of the last acknowledgement of a working stream: the broker answers each heartbeat.
const ackTimeout = HeartbeatInterval + 5*time.Second

// Delivery reports whether the broker receives the exports, nodes above all, and acknowledges them.
func (p *Publisher) Delivery(now time.Time) *semaphorev1.Delivery {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := &semaphorev1.Delivery{Cluster: p.broker.Cluster}
	_, lags := p.requiredRevision[semaphorev1.Kind_KIND_NODE]
	switch {
	case p.session == nil:
		d.Problem = "the exporter has no stream to its broker"
	case len(p.session.snapshots) > 0:
		d.Problem = "the exporter is sending its broker a snapshot"
	case lags:
		d.Problem = "the exporter sends its broker no nodes, because the apiserver lags"
	case now.Sub(p.acked) > ackTimeout:
		d.Problem = fmt.Sprintf("its broker has acknowledged nothing for more than %s", ackTimeout)
	default:
		d.Acknowledged = true
	}
	return d
}

func (p *Publisher) Status() *semaphorev1.LinkStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	link := &semaphorev1.LinkStatus{
		Cluster: p.broker.Cluster, Address: p.broker.Address,
		Connected: p.session != nil, Since: timestamppb.New(p.since), LastError: p.lastError,
	}
	link.LastHeard = semaphorev1.Time(p.lastReceived)
	if p.otherStands {
		link.RefusedSourceId = cmp.Or(p.options.Source.ID(), "unknown")
	}
	counts := map[semaphorev1.Kind]*semaphorev1.KindStatus{}
	for _, kind := range p.catalog.Rules().KindsFor(p.broker.Cluster) {
		counts[kind] = &semaphorev1.KindStatus{
			Kind: kind, Complete: p.options.Source.Ready(kind), Objects: uint64(p.catalog.Objects(p.broker.Cluster, kind)),
		}
		link.Kinds = append(link.Kinds, counts[kind])
	}
	for key := range p.refused {
		if of := counts[key.Kind]; of != nil {
			of.Refused++
		}
	}
	if p.session != nil {
		link.SoftwareVersion = p.session.peerSoftware
		link.Behind = uint64(p.session.behind())
	}
	return link
}
