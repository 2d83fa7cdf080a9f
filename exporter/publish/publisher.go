// Package publish brings a cluster's catalog to one broker: a stream that begins anew
// whenever it ends, for as long as the exporter lives.
//
// The protocol is in session, which does no I/O. Publishers of different brokers share
// nothing but the journal they read.
package publish

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/program"
	"github.com/kube-semaphore/semaphore/internal/stream/link"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// heartbeatEvery is how often a broker hears of us at least.
const heartbeatEvery = 5 * time.Second

// welcomeWithin is how long a broker may take to answer Hello.
const welcomeWithin = 10 * time.Second

// What a broker says is bounded: it is another cluster's.
const (
	maxAnswer = 1 << 20
	maxReason = 512
	// maxLogged refusals of a stream are logged as warnings, the rest for debugging only; events, metrics
	// and status have all of them.
	maxLogged = 20
)

// Publisher brings the catalog to one broker.
type Publisher struct {
	cluster  string
	term     uint64
	broker   config.ExporterBroker
	source   *identity.Source
	catalog  *catalog.Catalog
	recorder *debug.Recorder
	metrics  *Metrics
	log      *slog.Logger
	from     Source

	// deliveries is nil but for the own broker.
	deliveries func() []*semaphorev1.Delivery
	// reportNow asks for a heartbeat with deliveries at once; nil but for the own broker.
	reportNow <-chan struct{}
	// disconnected is called when a stream that the broker took has ended.
	disconnected func()

	mu sync.Mutex
	// needed is how far the source must be read, by kind, before this broker is told of it; see LagError.
	needed map[semaphorev1.Kind]uint64
	// told is how far this broker has been told that the source was read.
	told    map[semaphorev1.Kind]uint64
	session *Session // of the stream that stands, nil for none
	// acked is when the broker last acknowledged something on it.
	acked     time.Time
	since     time.Time
	heard     time.Time
	lastError string
	refused   map[catalog.Key]*semaphorev1.Refusal
	// outcomes are what the broker told of services that it took, on the stream that stands or the one before.
	outcomes map[catalog.Key]*semaphorev1.Outcome
	// turns counts the changes of streams, refusals and outcomes.
	turns  uint64
	logged int
	codes  codes
}

// New makes the publisher of the catalog of cluster to one broker. term is that of the exporter's lease, 0 without
// leader election.
func New(cluster string, term uint64, broker config.ExporterBroker, source *identity.Source, c *catalog.Catalog, rec *debug.Recorder, metrics *Metrics) *Publisher {
	p := &Publisher{
		cluster: cluster, term: term, broker: broker, source: source, catalog: c, recorder: rec, metrics: metrics,
		log:   slog.With("broker", broker.Cluster, "address", broker.Address),
		since: time.Now(), refused: map[catalog.Key]*semaphorev1.Refusal{}, outcomes: map[catalog.Key]*semaphorev1.Outcome{}, codes: codes{},
		from: whole{}, needed: map[semaphorev1.Kind]uint64{},
	}
	metrics.connected.WithLabelValues(broker.Cluster).Set(0)
	return p
}

// ReadsFrom has the publisher wait for what the catalog is read from, a kind at a time. Without it the catalog must be
// whole when Run begins. It is called before Run.
func (p *Publisher) ReadsFrom(source Source) { p.from = source }

// Reports makes this publisher report deliveries with each heartbeat, and with one more at once when now has a value.
// It is called before Run.
func (p *Publisher) Reports(deliveries func() []*semaphorev1.Delivery, now <-chan struct{}) {
	p.deliveries, p.reportNow = deliveries, now
}

// OnDisconnect has f called when a stream that the broker took has ended. It is called before Run.
func (p *Publisher) OnDisconnect(f func()) { p.disconnected = f }

// Run publishes until ctx ends.
func (p *Publisher) Run(ctx context.Context) error {
	return link.Keep(ctx, link.End{
		Address: p.broker.Address,
		TLS:     p.source.ClientTLS(identity.Broker(p.broker.Cluster)),
		Options: []grpc.DialOption{
			grpc.WithDefaultCallOptions(grpc.UseCompressor(gzip.Name), grpc.MaxCallRecvMsgSize(maxAnswer)),
			grpc.WithStreamInterceptor(p.metrics.client.StreamClientInterceptor()),
			grpc.WithStatsHandler(wireBytes{p.metrics.bytes.WithLabelValues(p.broker.Cluster)}),
		},
	}, p.stream, func(err error) { p.ended(p.source.Refused(err)) })
}

// stream is one stream, from Hello to its end. It always returns an error.
func (p *Publisher) stream(ctx context.Context, conn *grpc.ClientConn) error {
	kinds, err := p.await(ctx)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	stream, err := semaphorev1.NewFederationServiceClient(conn).Publish(ctx)
	if err != nil {
		return err
	}
	s := NewSession(p.cluster, p.broker.Cluster, program.Version, p.term, p.from.ID(), kinds, p.catalog.Journal())
	s.Source(p.from.Read, p.from.Newest)
	s.Before(p.told)
	if rules := p.catalog.Rules(); rules.Features.Has(config.Policy) {
		s.LabelDomains(rules.LabelDomains)
	}
	if err := stream.Send(s.Hello()); err != nil {
		return link.Reason(stream.Recv)
	}
	// more wakes the sender when the broker has said something that lets it go on.
	more := make(chan struct{}, 1)
	g.Go(func() error { return p.receive(stream, s, more) })
	g.Go(func() error { return p.send(ctx, stream, s, more) })
	g.Go(func() error { return p.watchKinds(ctx, kinds) })
	err = g.Wait()
	p.told = s.Told()
	if lag := (*LagError)(nil); errors.As(err, &lag) {
		p.hold(lag)
	} else if !errors.Is(err, errMoreKinds) {
		// It may have forgotten what it was told, as one that was restarted.
		p.askAnew()
	}
	return err
}

func (p *Publisher) receive(stream semaphorev1.FederationService_PublishClient, s *Session, more chan<- struct{}) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		p.mu.Lock()
		was := s.welcomed
		r, err := s.Receive(m)
		p.heard = time.Now()
		p.mu.Unlock()
		if err != nil {
			return err
		}
		if !was && s.welcomed {
			p.begun(s)
		}
		p.note(r)
		select {
		case more <- struct{}{}:
		default:
		}
	}
}

func (p *Publisher) send(ctx context.Context, stream semaphorev1.FederationService_PublishClient, s *Session, more <-chan struct{}) error {
	beat := time.NewTicker(heartbeatEvery)
	defer beat.Stop()
	late := time.NewTimer(welcomeWithin)
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
				return fmt.Errorf("the broker of %s has not answered hello for %s", p.broker.Cluster, welcomeWithin)
			case <-p.reportNow:
			case <-beat.C:
			}
			if !welcomed {
				continue
			}
			m = s.Heartbeat(time.Now())
			if p.deliveries != nil {
				m.GetHeartbeat().Deliveries = p.deliveries()
			}
		}
		if err := stream.Send(m); err != nil {
			// Recv, in the other goroutine, is told the reason.
			<-ctx.Done()
			return ctx.Err()
		}
		p.sent(m)
	}
}

// begun notes that the broker has taken the stream.
func (p *Publisher) begun(s *Session) {
	p.mu.Lock()
	p.session, p.since, p.lastError, p.acked = s, time.Now(), "", time.Time{}
	p.turns++
	how := "with a snapshot"
	if s.resumed {
		how = fmt.Sprintf("going on after revision %d", s.acked)
	} else {
		// Every object is about to be judged anew.
		clear(p.refused)
	}
	clear(p.outcomes) // the broker tells them with its first acknowledgement of a heartbeat
	p.logged = 0
	p.mu.Unlock()
	p.metrics.connected.WithLabelValues(p.broker.Cluster).Set(1)
	p.recorder.Record(debug.Event{Source: p.broker.Cluster, Object: "broker " + p.broker.Cluster, Action: "connect", Detail: how})
	p.log.Info("publishing", "how", how, "version", s.peerSoftware)
}

// ended notes that a stream, or the attempt at one, has ended.
func (p *Publisher) ended(err error) {
	reason := words(err)
	p.mu.Lock()
	p.turns++
	was := p.session != nil
	told := p.lastError == reason
	if was {
		p.session, p.since = nil, time.Now()
	}
	p.lastError = reason
	p.mu.Unlock()
	p.metrics.connected.WithLabelValues(p.broker.Cluster).Set(0)
	p.metrics.streamsEnded.WithLabelValues(p.broker.Cluster).Inc()
	if was && p.disconnected != nil {
		p.disconnected()
	}
	if was || !told {
		p.recorder.Record(debug.Event{Source: p.broker.Cluster, Object: "broker " + p.broker.Cluster, Action: "disconnect", Detail: reason})
		p.log.Warn("not publishing; trying again", "error", reason)
	}
}

// words says what a call ended with, without gRPC's preamble.
func words(err error) string {
	if errors.Is(err, io.EOF) {
		return "the broker ended the stream"
	}
	if s, ok := status.FromError(err); ok {
		return fmt.Sprintf("%s (%s)", s.Message(), s.Code())
	}
	return err.Error()
}

func (p *Publisher) note(r Received) {
	if r.Ack != nil {
		p.mu.Lock()
		p.acked = time.Now()
		p.mu.Unlock()
		p.metrics.ackedRevision.WithLabelValues(p.broker.Cluster).Set(float64(r.Ack.GetRevision()))
		p.metrics.ackAt.WithLabelValues(p.broker.Cluster).SetToCurrentTime()
	}
	for _, m := range r.acknowledged {
		p.metrics.acknowledged.WithLabelValues(p.broker.Cluster).Observe(time.Since(m.observedAt).Seconds())
	}
	if r.Refusal != nil {
		p.noteRefusal(r.Refusal)
	}
	if r.Outcome != nil {
		p.noteOutcome(r.Outcome)
	}
}

func (p *Publisher) noteRefusal(refusal *semaphorev1.Refusal) {
	k := refusal.GetKey()
	key := catalog.Key{Kind: k.GetKind(), Namespace: k.GetNamespace(), Name: k.GetName()}
	if !p.catalog.Exports(p.broker.Cluster, key) {
		return // it is gone by now, or never was
	}
	refusal.Reason = bounded(refusal.GetReason())
	p.mu.Lock()
	p.refused[key] = refusal
	p.turns++
	code := p.codes.label(refusal.GetCode())
	level := slog.LevelDebug
	if p.logged++; p.logged <= maxLogged {
		level = slog.LevelWarn
	}
	p.mu.Unlock()
	p.metrics.refused.WithLabelValues(p.broker.Cluster, semaphorev1.KindName(key.Kind), code).Inc()
	p.recorder.Record(debug.Event{Source: p.broker.Cluster, Object: key.String(), Action: "refuse", Detail: refusal.GetReason()})
	p.log.Log(context.Background(), level, "the broker refuses an object", "object", key, "code", code, "reason", refusal.GetReason())
}

// bounded is a text of a broker, which is another cluster's, as far as it is kept.
func bounded(text string) string {
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}

func (p *Publisher) noteOutcome(o *semaphorev1.Outcome) {
	k := o.GetKey()
	key := catalog.Key{Kind: k.GetKind(), Namespace: k.GetNamespace(), Name: k.GetName()}
	if key.Kind != semaphorev1.Kind_KIND_SERVICE || !p.catalog.Exports(p.broker.Cluster, key) {
		return // it is gone by now, or never was
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turns++
	if o.GetCode() == "" {
		delete(p.outcomes, key)
		return
	}
	o.Reason = bounded(o.GetReason())
	p.outcomes[key] = o
	p.recorder.Record(debug.Event{Source: p.broker.Cluster, Object: key.String(), Action: "outcome", Detail: o.GetReason()})
}

// Taken says whether the broker holds what was published of an object up to a revision, and what it has against it, empty for
// nothing. settled is false while that is not known: no stream is there, or one that has just begun.
func (p *Publisher) Taken(key catalog.Key, revision uint64, now time.Time) (against string, settled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session == nil || len(p.session.snapshots) > 0 || now.Sub(p.since) < settleWithin || p.acked.IsZero() || p.session.acked < revision {
		return "", false
	}
	if r := p.refused[key]; r != nil {
		return r.GetReason(), true
	}
	return p.outcomes[key].GetReason(), true
}

// Standing changes whenever Taken may say something else.
func (p *Publisher) Standing() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.turns
	if p.session != nil {
		n += p.session.acked + 1
		if time.Since(p.since) >= settleWithin {
			n++
		}
	}
	return n
}

// settleWithin is after how long a broker has told what it has against the services that it was told on a new stream, with the
// answer to the first heartbeat.
const settleWithin = heartbeatEvery + time.Second

// sent takes note of what went out: a newer state of a refused object is no longer refused.
func (p *Publisher) sent(m *semaphorev1.PublishRequest) {
	for _, change := range m.GetChanges().GetChanges() {
		k, action := change.GetDelete(), "delete"
		if up := change.GetUpsert(); up != nil {
			k, action = up.GetKey(), "export"
		}
		key := catalog.Key{Kind: k.GetKind(), Namespace: k.GetNamespace(), Name: k.GetName()}
		p.metrics.changes.WithLabelValues(p.broker.Cluster, semaphorev1.KindName(key.Kind)).Inc()
		p.recorder.Record(debug.Event{
			Source: p.cluster, Object: key.String(), Action: action, Detail: "to " + p.broker.Cluster, ObservedAt: change.GetObservedAt().AsTime(),
		})
		p.forgetRefusal(key, change.GetRevision())
		if action == "delete" {
			p.mu.Lock()
			delete(p.outcomes, key)
			p.mu.Unlock()
		}
	}
}

func (p *Publisher) forgetRefusal(key catalog.Key, revision uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// The broker may have refused this very revision by the time we get here.
	if r, ok := p.refused[key]; ok && r.GetRevision() < revision {
		delete(p.refused, key)
	}
}

// ackWithin is how old the last acknowledgement of a stream that works may be: each heartbeat is answered with one.
const ackWithin = heartbeatEvery + 5*time.Second

// Delivery is whether the broker receives what is published, nodes above all, and acknowledges it.
func (p *Publisher) Delivery(now time.Time) *semaphorev1.Delivery {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := &semaphorev1.Delivery{Cluster: p.broker.Cluster}
	_, lags := p.needed[semaphorev1.Kind_KIND_NODE]
	switch {
	case p.session == nil:
		d.Problem = "the exporter has no stream to its broker"
	case len(p.session.snapshots) > 0:
		d.Problem = "the exporter is sending its broker a snapshot"
	case lags:
		d.Problem = "the exporter tells its broker nothing of nodes, as the apiserver lags"
	case now.Sub(p.acked) > ackWithin:
		d.Problem = fmt.Sprintf("its broker has acknowledged nothing for more than %s", ackWithin)
	default:
		d.Acknowledged = true
	}
	return d
}

// Status is how the publisher stands with its broker.
func (p *Publisher) Status() *semaphorev1.LinkStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	link := &semaphorev1.LinkStatus{
		Cluster: p.broker.Cluster, Address: p.broker.Address,
		Connected: p.session != nil, Since: timestamppb.New(p.since), LastError: p.lastError,
	}
	if !p.heard.IsZero() {
		link.LastHeard = timestamppb.New(p.heard)
	}
	counts := map[semaphorev1.Kind]*semaphorev1.KindStatus{}
	for _, kind := range p.catalog.Rules().KindsFor(p.broker.Cluster) {
		counts[kind] = &semaphorev1.KindStatus{
			Kind: semaphorev1.KindName(kind), Complete: p.from.Ready(kind), Objects: uint64(p.catalog.Objects(p.broker.Cluster, kind)),
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
