package publish

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/journal"
	"github.com/kube-semaphore/semaphore/internal/link"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// The versions of the protocol that this exporter speaks.
const (
	protocolVersion    = 1
	minProtocolVersion = 1
)

// A batch of changes ends at either limit. The bytes are far under gRPC's 4 MiB, and the largest single
// object (an EndpointSlice of 1,000 endpoints) is about 100 KiB.
const (
	maxBatchBytes   = 512 << 10
	maxBatchObjects = 1000
)

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
	kinds    []semaphorev1.Kind
	journal  *catalog.Journal

	welcomed bool
	resumed  bool
	// peerSoftware is the broker's version, for status.
	peerSoftware string
	// snapshots to send, a kind each, the first being under way; snapshotAt is their moment.
	snapshots  []*kindSnapshot
	snapshotAt uint64
	// snapshotObjects is how many objects all of them have.
	snapshotObjects int
	// cursor is where this reader of the journal stands.
	cursor uint64
	acked  uint64
	// unacked are the changes sent and not yet acknowledged, a mark a message.
	unacked []mark
}

type kindSnapshot struct {
	kind    semaphorev1.Kind
	begun   bool
	entries []*entry
	total   uint64
}

type entry = journal.Entry[catalog.Key, *semaphorev1.Object]

// mark remembers of one message what is needed when it is acknowledged.
type mark struct {
	revision uint64
	// observedAt is that of its oldest change.
	observedAt time.Time
}

// NewSession begins a stream of what cluster exports to broker. term is that of the exporter's lease and sourceID
// names what it reads, as Hello has them.
func NewSession(cluster, broker, software string, term uint64, sourceID string, kinds []semaphorev1.Kind, journal *catalog.Journal) *Session {
	return &Session{cluster: cluster, broker: broker, software: software, term: term, sourceID: sourceID, kinds: kinds, journal: journal}
}

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
	}}}
}

// Heartbeat is a message for when there is nothing else to say.
func (s *Session) Heartbeat(now time.Time) *semaphorev1.PublishRequest {
	return &semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_Heartbeat{Heartbeat: &semaphorev1.Heartbeat{
		HeadRevision: s.journal.Head(), SentAt: timestamppb.New(now),
	}}}
}

// Received is what one message of the broker told.
type Received struct {
	// Ack and Refusal are nil where it told none.
	Ack     *semaphorev1.Ack
	Refusal *semaphorev1.Refusal
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
	s.welcomed = true
	s.peerSoftware = w.GetSoftwareVersion()
	if r := w.GetResumeRevision(); w.GetResumeEpoch() == s.journal.Epoch() && r > 0 && r >= s.journal.Oldest() && r <= s.journal.Head() {
		s.resumed = true
		s.cursor, s.acked = r, r
		return nil
	}
	s.snapshot()
	return nil
}

// snapshot cuts the state of one moment into kinds.
func (s *Session) snapshot() {
	all, at := s.journal.Snapshot()
	byKind := map[semaphorev1.Kind]*kindSnapshot{}
	for _, kind := range s.kinds {
		byKind[kind] = &kindSnapshot{kind: kind}
		s.snapshots = append(s.snapshots, byKind[kind])
	}
	for _, e := range all {
		if of := byKind[e.Key.Kind]; of != nil && e.Key.For(s.broker) {
			of.entries = append(of.entries, e)
			of.total++
			s.snapshotObjects++
		}
	}
	s.snapshotAt, s.cursor = at, at
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
	if !of.begun {
		of.begun = true
		return &semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_SnapshotBegin{
			SnapshotBegin: &semaphorev1.SnapshotBegin{Kind: of.kind, Revision: s.snapshotAt},
		}}
	}
	if len(of.entries) > 0 {
		var b batch
		for len(of.entries) > 0 && b.add(of.entries[0]) {
			of.entries = of.entries[1:]
		}
		return b.message()
	}
	s.snapshots = s.snapshots[1:]
	return &semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_SnapshotEnd{
		SnapshotEnd: &semaphorev1.SnapshotEnd{Kind: of.kind, Revision: s.snapshotAt, Objects: of.total},
	}}
}

func (s *Session) nextChanges() (*semaphorev1.PublishRequest, error) {
	for {
		entries, next, ok := s.journal.Since(s.cursor, maxBatchObjects)
		if !ok {
			return nil, errFellBehind
		}
		if len(entries) == 0 {
			s.cursor = next
			return nil, nil
		}
		var b batch
		for _, e := range entries {
			if e.Key.For(s.broker) && !b.add(e) {
				break
			}
			s.cursor = e.Revision
		}
		if len(b.changes) > 0 {
			s.unacked = append(s.unacked, mark{b.changes[len(b.changes)-1].GetRevision(), b.oldest})
			return b.message(), nil
		}
		// All of these were for others.
	}
}

// behind is how many changes the broker has not acknowledged. Those of a snapshot count until it has
// acknowledged all of it.
func (s *Session) behind() int {
	n, from := 0, s.acked
	if !s.resumed && s.acked < s.snapshotAt {
		n, from = s.snapshotObjects, s.snapshotAt
	}
	for {
		entries, next, ok := s.journal.Since(from, maxBatchObjects)
		if !ok {
			return n + s.journal.Pending(from)
		}
		for _, e := range entries {
			if e.Key.For(s.broker) {
				n++
			}
		}
		if len(entries) == 0 {
			return n
		}
		from = next
	}
}

// batch is a message in the making.
type batch struct {
	changes []*semaphorev1.Change
	bytes   int
	oldest  time.Time
}

// add is false when the entry belongs into the next message.
func (b *batch) add(e *entry) bool {
	change := &semaphorev1.Change{Revision: e.Revision, ObservedAt: timestamppb.New(e.ObservedAt)}
	if e.Deleted {
		change.Change = &semaphorev1.Change_Delete{Delete: e.Key.Proto()}
	} else {
		change.Change = &semaphorev1.Change_Upsert{Upsert: e.Value}
	}
	size := proto.Size(change)
	if len(b.changes) > 0 && (b.bytes+size > maxBatchBytes || len(b.changes) == maxBatchObjects) {
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
