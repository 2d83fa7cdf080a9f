package publish

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/stream/digest"
	"github.com/kube-semaphore/semaphore/internal/stream/link"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// The versions of the protocol that this exporter speaks.
const (
	protocolVersion    = 1
	minProtocolVersion = 1
)

// A batch of changes ends at either limit, or holds one object, which catalog.MaxObject bounds: far under gRPC's
// 4 MiB. The largest single object, an EndpointSlice of 1,000 endpoints, is about 100 KiB.
const (
	maxBatchBytes   = 512 << 10
	maxBatchObjects = 1000
)

// countedSingly is how many changes that wait for a broker are counted one by one: a status must not cost a walk
// through everything for each broker that has stalled.
const countedSingly = 10_000

// errFellBehind ends a stream whose broker has not kept up with deletions; the next one begins
// with a snapshot.
var errFellBehind = fmt.Errorf("the broker is too far behind to go on without a snapshot: %w", link.ErrAgain)

// Session is the protocol of one stream, as federation.proto has it: messages in, messages out.
// It starts no goroutine, asks no clock and opens no socket. It is not safe for concurrent use.
type Session struct {
	cluster  string // ours
	broker   string // the other's
	software string
	term     uint64
	sourceID string
	// read is how far the source has been read for a kind; 0 for unknown.
	read, newest func(semaphorev1.Kind) uint64
	kinds        []semaphorev1.Kind
	journal      *catalog.Journal
	// batchMost is how many changes a message has at most.
	batchMost int

	// labelDomains are ours, and peerLabelDomains the broker's; none where that is not said.
	labelDomains, peerLabelDomains []string

	welcomed bool
	resumed  bool
	// peerSoftware is the broker's version, for status.
	peerSoftware string
	// snapshots to send, a kind each, the first being under way; snapshotAt is their moment.
	snapshots  []*kindSnapshot
	snapshotAt uint64
	// snapshotObjects is how many objects of them are sent.
	snapshotObjects int
	// cursor is where this reader of the journal stands.
	cursor uint64
	// whole is the newest revision at which this stream had told all that there was; the cursor can be past
	// changes that had moved behind it by then, because the objects changed again.
	whole uint64
	// readTold is how far the broker has been told that the source was read.
	readTold map[semaphorev1.Kind]uint64
	// snapshotTold is how far its snapshots say that it was read.
	snapshotTold map[semaphorev1.Kind]uint64
	// before is what earlier streams of this exporter have told the broker of that.
	before map[semaphorev1.Kind]uint64
	acked  uint64
	// unacked are the changes sent and not yet acknowledged, a mark a message.
	unacked []mark
}

type kindSnapshot struct {
	kind    semaphorev1.Kind
	begun   bool
	entries []*catalog.Entry
	total   uint64
	// digest is that of all entries, read how far the source had been read for them at most.
	digest digest.Digest
	read   uint64
	// unchanged says that the broker was told all of it before.
	unchanged bool
}

// mark remembers of one message what is needed when it is acknowledged.
type mark struct {
	revision uint64
	// observedAt is that of its oldest change.
	observedAt time.Time
}

// NewSession begins a stream of what cluster exports to broker. term is that of the exporter's lease and sourceID
// names what it reads, as Hello has them.
func NewSession(cluster, broker, software string, term uint64, sourceID string, kinds []semaphorev1.Kind, journal *catalog.Journal) *Session {
	return &Session{
		cluster: cluster, broker: broker, software: software, term: term, sourceID: sourceID, kinds: kinds, journal: journal,
		batchMost: maxBatchObjects, read: unknown, newest: unknown, readTold: map[semaphorev1.Kind]uint64{}, snapshotTold: map[semaphorev1.Kind]uint64{},
	}
}

// Source says how far the source has been read for a kind: all of it up to read, and nothing beyond newest, as more than
// one thing can be read for a kind. The session tells the newest, and tells nothing at all to a broker that was once
// told of what has not been read yet; see LagError. It is called before Hello.
func (s *Session) Source(read, newest func(semaphorev1.Kind) uint64) { s.read, s.newest = read, newest }

// LabelDomains says by labels of which domains the pods of sets are found. It is called before Hello.
func (s *Session) LabelDomains(domains []string) { s.labelDomains = domains }

// Told is how far the broker has been told that the source was read, by this stream or those Before.
func (s *Session) Told() map[semaphorev1.Kind]uint64 {
	told := maps.Clone(s.readTold)
	for _, earlier := range []map[semaphorev1.Kind]uint64{s.snapshotTold, s.before} {
		for kind, read := range earlier {
			told[kind] = max(told[kind], read)
		}
	}
	return told
}

// Before says what Told was of the stream before, with the same catalog. It never lags behind what it was told from
// itself, although not all that a kind is made of may have been read as far. It is called before Hello.
func (s *Session) Before(told map[semaphorev1.Kind]uint64) { s.before = told }

// Batch sets how many changes a message has at most. It is called before Hello, by a simulation whose few objects are to take
// several messages.
func (s *Session) Batch(most int) { s.batchMost = most }

func unknown(semaphorev1.Kind) uint64 { return 0 }

// LagError ends a stream before anything is told of the kinds that a broker was told newer things of, from the same
// source: what we read is an old copy, such as the cache of an apiserver that lags. The next stream is to leave out
// these kinds until the source has been read as far.
type LagError struct {
	Broker string
	// Behind has, by kind, how far the source must be read.
	Behind map[semaphorev1.Kind]uint64
}

func (e *LagError) Error() string {
	var kinds []string
	for _, kind := range slices.Sorted(maps.Keys(e.Behind)) {
		kinds = append(kinds, semaphorev1.KindName(kind))
	}
	return fmt.Sprintf("the apiserver lags: the broker of %s was told newer things of kind %s than what has been read", e.Broker, strings.Join(kinds, ", "))
}

// Unwrap has the next stream begin at once.
func (e *LagError) Unwrap() error { return link.ErrAgain }

// Hello is the first message.
func (s *Session) Hello() *semaphorev1.PublishRequest {
	return &semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_Hello{Hello: &semaphorev1.Hello{
		Cluster:            s.cluster,
		ProtocolVersion:    protocolVersion,
		MinProtocolVersion: minProtocolVersion,
		Epoch:              s.journal.Epoch(),
		HeadRevision:       s.journal.Head(),
		OldestRevision:     s.journal.Oldest(),
		Kinds:              s.kinds,
		SoftwareVersion:    s.software,
		Term:               s.term,
		SourceId:           s.sourceID,
		LabelDomains:       s.labelDomains,
	}}}
}

// Heartbeat is a message for when there is nothing else to say.
func (s *Session) Heartbeat(now time.Time) *semaphorev1.PublishRequest {
	m := &semaphorev1.Heartbeat{HeadRevision: s.journal.Head(), SentAt: timestamppb.New(now)}
	if s.welcomed && len(s.snapshots) == 0 {
		m.SentRevision = s.cursor
		m.Sources = s.sources(nil)
	}
	return &semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_Heartbeat{Heartbeat: m}}
}

// sources is how far the source has been read, of kinds that have been read further than when that was last told, or
// of all.
func (s *Session) sources(told map[semaphorev1.Kind]uint64) []*semaphorev1.SourceRevision {
	var all []*semaphorev1.SourceRevision
	for _, kind := range s.kinds {
		if read := s.newest(kind); read > told[kind] {
			all = append(all, &semaphorev1.SourceRevision{Kind: kind, SourceRevision: read})
			s.readTold[kind] = read
		}
	}
	return all
}

// Cursor is the revision up to which everything has been sent that is for the broker; Next has nothing to say until the
// journal changes after it.
func (s *Session) Cursor() uint64 { return s.cursor }

// Received is what one message of the broker told.
type Received struct {
	// Ack and Refusal are nil where it told none.
	Ack     *semaphorev1.Ack
	Refusal *semaphorev1.Refusal
	// Outcome is nil where it told none.
	Outcome *semaphorev1.Outcome
	// acknowledged are the marks up to which the broker now holds everything.
	acknowledged []mark
}

// Receive takes one message of the broker. An error ends the stream.
func (s *Session) Receive(m *semaphorev1.PublishResponse) (Received, error) {
	var r Received
	switch m := m.GetMessage().(type) {
	case *semaphorev1.PublishResponse_Welcome:
		return r, s.welcome(m.Welcome)
	case *semaphorev1.PublishResponse_Ack:
		revision := m.Ack.GetRevision()
		if !s.welcomed || revision > max(s.cursor, s.snapshotAt) {
			return r, fmt.Errorf("the broker of %s acknowledges revision %d, which was not sent", s.broker, revision)
		}
		s.acked = max(s.acked, revision)
		r.Ack = m.Ack
		for len(s.unacked) > 0 && s.unacked[0].revision <= revision {
			r.acknowledged = append(r.acknowledged, s.unacked[0])
			s.unacked = s.unacked[1:]
		}
	case *semaphorev1.PublishResponse_Refusal:
		r.Refusal = m.Refusal
	case *semaphorev1.PublishResponse_Outcome:
		r.Outcome = m.Outcome
	}
	// A message of no known kind is a later protocol's, and may be passed over.
	return r, nil
}

func (s *Session) welcome(w *semaphorev1.Welcome) error {
	switch {
	case s.welcomed:
		return fmt.Errorf("the broker of %s said welcome twice", s.broker)
	case w.GetCluster() != s.broker:
		return fmt.Errorf("the broker says that it is %q's; its certificate is %q's", w.GetCluster(), s.broker)
	case w.GetProtocolVersion() < minProtocolVersion || w.GetProtocolVersion() > protocolVersion:
		return fmt.Errorf("the broker of %s speaks protocol version %d, this exporter %d to %d", s.broker, w.GetProtocolVersion(), minProtocolVersion, protocolVersion)
	}
	held := map[semaphorev1.Kind]*semaphorev1.KindState{}
	for _, k := range w.GetHeld() {
		held[k.GetKind()] = k
	}
	if r := w.GetResumeRevision(); w.GetResumeEpoch() == s.journal.Epoch() && r > 0 && r >= s.journal.Oldest() && r <= s.journal.Head() {
		// What this life of the exporter has told it did not read later than now.
		s.resumed = true
		s.cursor, s.acked = r, r
	} else {
		if err := s.lags(held); err != nil {
			return err
		}
		s.snapshot(held)
	}
	s.welcomed = true
	s.peerSoftware, s.peerLabelDomains = w.GetSoftwareVersion(), w.GetLabelDomains()
	return nil
}

// lags is an error where the broker was told of the same source what we have not read yet.
func (s *Session) lags(held map[semaphorev1.Kind]*semaphorev1.KindState) error {
	told := func(kind semaphorev1.Kind) uint64 {
		if k := held[kind]; s.sourceID != "" && k.GetSourceId() == s.sourceID && k.GetSourceRevision() > s.before[kind] {
			return k.GetSourceRevision()
		}
		return 0
	}
	behind := map[semaphorev1.Kind]uint64{}
	for _, kind := range s.kinds {
		needed, read := told(kind), s.read(kind)
		if kind == semaphorev1.Kind_KIND_ENDPOINT_SLICE {
			// Which slices are told is decided by the Services: old ones would have slices come and go that did not.
			needed = max(needed, told(semaphorev1.Kind_KIND_SERVICE))
		}
		if read > 0 && needed > read {
			behind[kind] = needed
		}
	}
	if len(behind) > 0 {
		return &LagError{s.broker, behind}
	}
	return nil
}

// snapshot cuts the state of one moment into kinds.
func (s *Session) snapshot(held map[semaphorev1.Kind]*semaphorev1.KindState) {
	byKind := map[semaphorev1.Kind]*kindSnapshot{}
	for _, kind := range s.kinds {
		byKind[kind] = &kindSnapshot{kind: kind}
		s.snapshots = append(s.snapshots, byKind[kind])
	}
	all, at := s.journal.Snapshot()
	for _, e := range all {
		if of := byKind[e.Key.Kind]; of != nil && e.Value.To.Has(s.broker) {
			of.entries = append(of.entries, e)
			of.total++
			of.digest.Add(e.Value.Digest)
		}
	}
	for _, of := range s.snapshots {
		of.read = s.newest(of.kind) // asked after the journal, which so holds nothing newer
		s.snapshotTold[of.kind] = of.read
		k := held[of.kind]
		told, ok := digest.Parse(k.GetDigest())
		if of.unchanged = ok && told == of.digest && k.GetObjects() == of.total; of.unchanged {
			of.entries = nil
		}
		s.snapshotObjects += len(of.entries)
	}
	s.snapshotAt, s.cursor, s.whole = at, at, at
}

// Next is the next message to send; nil when there is nothing to say until the journal
// changes after the cursor, or the broker has not said welcome.
func (s *Session) Next() (*semaphorev1.PublishRequest, error) {
	switch {
	case !s.welcomed:
		return nil, nil
	case len(s.snapshots) > 0:
		return s.nextOfSnapshot(), nil
	default:
		return s.nextChanges()
	}
}

func (s *Session) nextOfSnapshot() *semaphorev1.PublishRequest {
	of := s.snapshots[0]
	if of.unchanged {
		s.snapshots = s.snapshots[1:]
		return &semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_SnapshotUnchanged{SnapshotUnchanged: &semaphorev1.SnapshotUnchanged{
			Kind: of.kind, Revision: s.snapshotAt, Objects: of.total, Digest: of.digest.Bytes(), SourceRevision: of.read,
		}}}
	}
	if !of.begun {
		of.begun = true
		return &semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_SnapshotBegin{
			SnapshotBegin: &semaphorev1.SnapshotBegin{Kind: of.kind, Revision: s.snapshotAt},
		}}
	}
	if len(of.entries) > 0 {
		b := batch{most: s.batchMost}
		for len(of.entries) > 0 && b.add(of.entries[0], catalog.Upsert) {
			of.entries = of.entries[1:]
		}
		return b.message()
	}
	s.snapshots = s.snapshots[1:]
	return &semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_SnapshotEnd{
		SnapshotEnd: &semaphorev1.SnapshotEnd{Kind: of.kind, Revision: s.snapshotAt, Objects: of.total, SourceRevision: of.read},
	}}
}

func (s *Session) nextChanges() (*semaphorev1.PublishRequest, error) {
	for {
		entries, next, ok := s.journal.Since(s.cursor, maxBatchObjects)
		if !ok {
			return nil, errFellBehind
		}
		if len(entries) == 0 {
			s.cursor, s.whole = next, next
			return nil, nil
		}
		b := batch{most: s.batchMost}
		taken := 0
		for _, e := range entries {
			if sight := s.sees(e); sight != catalog.Nothing && !b.add(e, sight) {
				break
			}
			s.cursor = e.Revision
			taken++
		}
		if taken == len(entries) && taken < maxBatchObjects {
			s.cursor, s.whole = next, next
		}
		if len(b.changes) > 0 {
			s.unacked = append(s.unacked, mark{b.changes[len(b.changes)-1].GetRevision(), b.oldest})
			m := b.message()
			// After the journal was read: what it holds was read from the source before.
			m.GetChanges().Sources = s.sources(s.readTold)
			return m, nil
		}
		// All of these were for others.
	}
}

// sees is what a step looks like on this stream.
func (s *Session) sees(e *catalog.Entry) catalog.Sight {
	if !slices.Contains(s.kinds, e.Key.Kind) {
		return catalog.Nothing
	}
	return catalog.Seen(e, s.broker, s.whole)
}

// behind is how many changes the broker has not acknowledged; those of a snapshot count until it has
// acknowledged all of it. Where they are more than countedSingly, it can be too many: those for others count too.
func (s *Session) behind() int {
	n, from := 0, s.acked
	if !s.resumed && s.acked < s.snapshotAt {
		n, from = s.snapshotObjects, s.snapshotAt
	}
	return n + s.journal.Count(from, countedSingly, func(e *catalog.Entry) bool { return s.sees(e) != catalog.Nothing })
}

// batch is a message in the making.
type batch struct {
	most    int // changes
	changes []*semaphorev1.Change
	bytes   int
	oldest  time.Time
}

// add is false when the entry, which is an upsert or a delete for the reader, belongs into the next message.
func (b *batch) add(e *catalog.Entry, sight catalog.Sight) bool {
	change := &semaphorev1.Change{Revision: e.Revision, ObservedAt: timestamppb.New(e.ObservedAt)}
	if sight == catalog.Delete {
		change.Change = &semaphorev1.Change_Delete{Delete: e.Key.Proto()}
	} else {
		change.Change = &semaphorev1.Change_Upsert{Upsert: e.Value.Object}
	}
	size := proto.Size(change)
	if len(b.changes) > 0 && (b.bytes+size > maxBatchBytes || len(b.changes) == b.most) {
		return false
	}
	if b.oldest.IsZero() || e.ObservedAt.Before(b.oldest) {
		b.oldest = e.ObservedAt
	}
	b.changes, b.bytes = append(b.changes, change), b.bytes+size
	return true
}

func (b *batch) message() *semaphorev1.PublishRequest {
	return &semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_Changes{Changes: &semaphorev1.Changes{Changes: b.changes}}}
}
