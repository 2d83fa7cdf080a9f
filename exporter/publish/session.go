package publish

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Protocol versions that this exporter supports.
const (
	protocolVersion    = 1
	minProtocolVersion = 1
)

// A batch of changes ends at either limit or where its objects take catalog.MaxMemory, or contains a single object. A
// broker reads it, as up to 1 KiB for each change beside its object fits into the rest of its 12 MiB.
const (
	maxBatchBytes   = 512 << 10
	maxBatchObjects = 1000
)

// maxExactCount is how many unacknowledged changes are filtered by audience for the status. Beyond it they are counted
// without, so that a stalled broker does not make each status walk the journal.
const maxExactCount = 10_000

// maxUnacked is how many messages a broker may leave without an acknowledgement; each takes 40 bytes. A broker that is
// slow does not come near it: it stops to read before.
const maxUnacked = 1 << 16

// Bounds of the copy of a broker's Welcome: bytes of its version, and label domains with the bytes of each.
const (
	maxSoftware     = 64
	maxLabelDomains = 16
	maxLabelDomain  = 253
)

// errFellBehind ends a stream whose broker needs deletions that the journal has dropped. The next stream begins with a
// snapshot.
var errFellBehind = fmt.Errorf("the broker is too far behind to resume without a snapshot: %w", streams.ErrAgain)

// Session is the protocol of one stream as federation.proto defines it: messages in, messages out. It starts no
// goroutine, reads no clock and opens no socket. It is not safe for concurrent use.
type Session struct {
	cluster  string // the own cluster
	broker   string // the cluster of the broker
	software string
	term     uint64
	source   Source
	sourceID string // of Hello
	kinds    []semaphorev1.Kind
	// unread are kinds that cannot be sent yet.
	unread  []semaphorev1.Kind
	journal *catalog.Journal
	// MaxChanges is the limit of changes in a message. A simulation with few objects sets a lower one before Hello.
	MaxChanges int
	// notBefore is the oldest revision from which the stream may resume: a broker that holds less gets a snapshot.
	notBefore uint64

	// labelDomains are those of the labels that put pods into sets: the own cluster's, and in peerLabelDomains the
	// broker's; empty if unknown.
	labelDomains, peerLabelDomains []string

	welcomed bool
	resumed  bool
	// peerSoftware is the broker's version, for the status.
	peerSoftware string
	// snapshots are still to be sent, one for each kind, the first in progress; snapshotAt is their revision.
	snapshots  []*kindSnapshot
	snapshotAt uint64
	// snapshotObjects is the number of objects that they contain.
	snapshotObjects int
	// cursor is the revision after which this stream reads the journal.
	cursor uint64
	// completeAt is the newest revision at which this stream had sent everything. The cursor can be past changes that
	// moved behind it because their objects changed again.
	completeAt uint64
	// reportedSource is the newest resourceVersion by kind that this stream reported.
	reportedSource map[semaphorev1.Kind]uint64
	// snapshotSource is the resourceVersion by kind of its snapshots.
	snapshotSource map[semaphorev1.Kind]uint64
	// earlierSource are the reportedRevisions of the stream before, which had the same catalog: this exporter never lags
	// behind its own reports, although a kind may have been read less far than newest.
	earlierSource map[semaphorev1.Kind]uint64
	acked         uint64
	// unacked are the messages sent and not acknowledged, oldest first.
	unacked []sentMessage
	// lone is the largest object that had a message to itself because of its size, and loneBytes is that size.
	lone      catalog.Key
	loneBytes int
	// answered is the number of heartbeats that the broker has answered, and answeredAt the cursor when the newest of
	// them was sent: the broker has reported all objections up to there.
	answered   uint64
	answeredAt uint64
}

type kindSnapshot struct {
	kind    semaphorev1.Kind
	begun   bool
	entries []*catalog.Entry
	total   uint64
	// digest is the digest of all entries, read the resourceVersion that they contain at most.
	digest streams.Digest
	read   uint64
	// unchanged means that the broker already holds exactly these entries.
	unchanged bool
}

// sentMessage is what an acknowledgement needs of one message of changes, of the snapshots, or of heartbeats with
// nothing between them.
type sentMessage struct {
	revision uint64
	// observedAt is when its oldest change was observed; zero but for changes.
	observedAt time.Time
	// beats is the number of heartbeats; 0 for changes.
	beats int
}

// NewSession begins a stream of cluster's exports to broker. term is the term of the exporter's Lease; see Hello. The
// session reports the newest revisions of source. It sends nothing to a broker that already received a newer state than
// was read; see LagError.
func NewSession(cluster, broker, software string, term uint64, source Source, kinds []semaphorev1.Kind,
	journal *catalog.Journal) *Session {
	return &Session{
		cluster: cluster, broker: broker, software: software, term: term, kinds: kinds, journal: journal,
		source: source, sourceID: source.ID(), MaxChanges: maxBatchObjects,
		reportedSource: map[semaphorev1.Kind]uint64{}, snapshotSource: map[semaphorev1.Kind]uint64{},
	}
}

// Exports says before Hello which kinds the exporter exports to the broker: those that the session cannot send yet are
// named as unread.
func (s *Session) Exports(all []semaphorev1.Kind) {
	s.unread = slices.DeleteFunc(all, func(of semaphorev1.Kind) bool { return slices.Contains(s.kinds, of) })
}

// reportedRevisions returns the newest resourceVersion by kind that this stream, or an earlier one, reported to the
// broker.
func (s *Session) reportedRevisions() map[semaphorev1.Kind]uint64 {
	newest := maps.Clone(s.reportedSource)
	for _, earlier := range []map[semaphorev1.Kind]uint64{s.snapshotSource, s.earlierSource} {
		for kind, read := range earlier {
			newest[kind] = max(newest[kind], read)
		}
	}
	return newest
}

// LagError ends a stream before it sends kinds of which the broker received a newer state from the same source: this
// exporter read an old state, such as the watch cache of an apiserver that lags. The next stream leaves these kinds
// out until the source has been read as far.
type LagError struct {
	Broker string
	// Behind is the resourceVersion by kind up to which the source must be read.
	Behind map[semaphorev1.Kind]uint64
}

func (e *LagError) Error() string {
	var kinds []string
	for _, kind := range slices.Sorted(maps.Keys(e.Behind)) {
		kinds = append(kinds, semaphorev1.KindName(kind))
	}
	return fmt.Sprintf("the apiserver lags: the broker of %s received newer objects of kind %s than the exporter has read",
		e.Broker, strings.Join(kinds, ", "))
}

// Unwrap makes the next stream begin immediately.
func (e *LagError) Unwrap() error { return streams.ErrAgain }

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
		UnreadKinds:        s.unread,
	}}}
}

// Heartbeat returns the message to send when there is no other. It must be sent: its answer is counted.
func (s *Session) Heartbeat() *semaphorev1.PublishRequest {
	m := &semaphorev1.Heartbeat{HeadRevision: s.journal.Head()}
	if s.welcomed && len(s.snapshots) == 0 {
		m.SentRevision = s.cursor
		m.Sources = s.sourceRevisions(nil)
		if last := len(s.unacked) - 1; last >= 0 && s.unacked[last].beats > 0 && s.unacked[last].revision == s.cursor {
			s.unacked[last].beats++
		} else {
			s.unacked = append(s.unacked, sentMessage{revision: s.cursor, beats: 1})
		}
	}
	return &semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_Heartbeat{Heartbeat: m}}
}

// sourceRevisions returns the resourceVersions by kind that are newer than reported, and records them as reported.
func (s *Session) sourceRevisions(reported map[semaphorev1.Kind]uint64) []*semaphorev1.SourceRevision {
	var all []*semaphorev1.SourceRevision
	for _, kind := range s.kinds {
		if read := s.source.Newest(kind); read > reported[kind] {
			all = append(all, &semaphorev1.SourceRevision{Kind: kind, SourceRevision: read})
			s.reportedSource[kind] = read
		}
	}
	return all
}

// Receive handles one message of the broker, and returns the sent changes that the broker now holds. It fails, which
// ends the stream, if it cannot use a Welcome (with a LagError if the broker knows a newer state), or if an
// acknowledged revision was not sent.
func (s *Session) Receive(m *semaphorev1.PublishResponse) (acknowledged []sentMessage, err error) {
	switch m := m.GetMessage().(type) {
	case *semaphorev1.PublishResponse_Welcome:
		return nil, s.handleWelcome(m.Welcome)
	case *semaphorev1.PublishResponse_Ack:
		revision := m.Ack.GetRevision()
		if !s.welcomed || revision > max(s.cursor, s.snapshotAt) {
			return nil, fmt.Errorf("the broker of %s acknowledges revision %d, which was not sent", s.broker, revision)
		}
		s.acked = max(s.acked, revision)
		return s.acknowledge(revision), nil
	}
	// Refusals and outcomes are the publisher's. An unknown type of message belongs to a later protocol version, and may
	// be ignored.
	return nil, nil
}

// acknowledge removes from unacked all messages before the revision of an Ack, and of this revision the changes or, if
// there are none, one heartbeat. It returns the changes. The broker answers in the order in which it receives, and
// merges the answers to messages that wait.
func (s *Session) acknowledge(revision uint64) (changes []sentMessage) {
	for len(s.unacked) > 0 && s.unacked[0].revision < revision {
		switch of := s.unacked[0]; {
		case of.beats > 0:
			s.answered, s.answeredAt = s.answered+uint64(of.beats), of.revision
		case !of.observedAt.IsZero():
			changes = append(changes, of)
		}
		s.unacked = s.unacked[1:]
	}
	if len(s.unacked) > 0 && s.unacked[0].beats > 0 && s.unacked[0].revision <= revision {
		of := &s.unacked[0]
		s.answered, s.answeredAt = s.answered+1, of.revision
		if of.beats--; of.beats == 0 {
			s.unacked = s.unacked[1:]
		}
		return changes
	}
	for len(s.unacked) > 0 && s.unacked[0].beats == 0 && s.unacked[0].revision <= revision {
		if !s.unacked[0].observedAt.IsZero() {
			changes = append(changes, s.unacked[0])
		}
		s.unacked = s.unacked[1:]
	}
	return changes
}

func (s *Session) handleWelcome(w *semaphorev1.Welcome) error {
	switch {
	case s.welcomed:
		return fmt.Errorf("the broker of %s sent Welcome twice", s.broker)
	case w.GetCluster() != s.broker:
		return fmt.Errorf("the broker claims to be the broker of %q, but its certificate is for %q", w.GetCluster(), s.broker)
	case w.GetProtocolVersion() < minProtocolVersion || w.GetProtocolVersion() > protocolVersion:
		return fmt.Errorf("the broker of %s speaks protocol version %d, this exporter %d to %d", s.broker,
			w.GetProtocolVersion(), minProtocolVersion, protocolVersion)
	}
	held := map[semaphorev1.Kind]*semaphorev1.KindState{}
	for _, k := range w.GetHeld() {
		held[k.GetKind()] = k
	}
	if r := w.GetResumeRevision(); w.GetResumeEpoch() == s.journal.Epoch() && r > 0 &&
		r >= max(s.journal.Oldest(), s.notBefore) && r <= s.journal.Head() {
		// The resumed epoch is this process's, which never reads an older state than it sent.
		s.resumed = true
		s.cursor, s.acked = r, r
	} else {
		if err := s.checkLag(held); err != nil {
			return err
		}
		s.prepareSnapshots(held)
	}
	s.welcomed = true
	s.peerSoftware = finding.CleanTo(w.GetSoftwareVersion(), maxSoftware)
	domains := w.GetLabelDomains()
	for _, domain := range domains[:min(len(domains), maxLabelDomains)] {
		s.peerLabelDomains = append(s.peerLabelDomains, finding.CleanTo(domain, maxLabelDomain))
	}
	return nil
}

// checkLag returns a LagError if the broker received, from the same source, a newer state than this exporter has read.
func (s *Session) checkLag(held map[semaphorev1.Kind]*semaphorev1.KindState) error {
	received := func(kind semaphorev1.Kind) uint64 {
		if k := held[kind]; s.sourceID != "" && k.GetSourceId() == s.sourceID &&
			k.GetSourceRevision() > s.earlierSource[kind] {
			return k.GetSourceRevision()
		}
		return 0
	}
	behind := map[semaphorev1.Kind]uint64{}
	for _, kind := range s.kinds {
		needed, read := received(kind), s.source.Read(kind)
		if kind == semaphorev1.Kind_KIND_ENDPOINT_SLICE {
			// Services decide which slices are exported: with old Services, slices would be deleted and created for no
			// reason.
			needed = max(needed, received(semaphorev1.Kind_KIND_SERVICE))
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

// prepareSnapshots splits the journal's state at one revision by kind.
func (s *Session) prepareSnapshots(held map[semaphorev1.Kind]*semaphorev1.KindState) {
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
		of.read = s.source.Newest(of.kind) // read after the journal, which therefore contains nothing newer
		s.snapshotSource[of.kind] = of.read
		k := held[of.kind]
		heldDigest, ok := streams.ParseDigest(k.GetDigest())
		if of.unchanged = ok && heldDigest == of.digest && k.GetObjects() == of.total; of.unchanged {
			of.entries = nil
		}
		s.snapshotObjects += len(of.entries)
	}
	s.snapshotAt, s.cursor, s.completeAt = at, at, at
}

// Next returns the next message to send; nil if there is none until the journal changes after the cursor, or the broker
// sends Welcome. It fails if the broker has left too many messages unacknowledged, or the journal has lost the entries
// after the cursor.
func (s *Session) Next() (*semaphorev1.PublishRequest, error) {
	switch {
	case !s.welcomed:
		return nil, nil
	case len(s.unacked) > maxUnacked:
		return nil, fmt.Errorf("the broker of %s has not acknowledged the last %d messages", s.broker, maxUnacked)
	case len(s.snapshots) > 0:
		return s.nextSnapshotMessage(), nil
	default:
		return s.nextChanges()
	}
}

func (s *Session) nextSnapshotMessage() *semaphorev1.PublishRequest {
	of := s.snapshots[0]
	if of.unchanged {
		s.endSnapshot()
		return &semaphorev1.PublishRequest{
			Message: &semaphorev1.PublishRequest_SnapshotUnchanged{SnapshotUnchanged: &semaphorev1.SnapshotUnchanged{
				Kind: of.kind, Revision: s.snapshotAt, Objects: of.total, Digest: of.digest.Bytes(), SourceRevision: of.read,
			}},
		}
	}
	if !of.begun {
		of.begun = true
		return &semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_SnapshotBegin{
			SnapshotBegin: &semaphorev1.SnapshotBegin{Kind: of.kind, Revision: s.snapshotAt},
		}}
	}
	if len(of.entries) > 0 {
		b := batch{maxChanges: s.MaxChanges}
		for len(of.entries) > 0 && b.add(of.entries[0], catalog.Upsert) {
			of.entries = of.entries[1:]
		}
		return s.message(&b)
	}
	s.endSnapshot()
	return &semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_SnapshotEnd{
		SnapshotEnd: &semaphorev1.SnapshotEnd{Kind: of.kind, Revision: s.snapshotAt, Objects: of.total,
			SourceRevision: of.read},
	}}
}

// endSnapshot passes to the snapshot of the next kind. The broker acknowledges all of them together.
func (s *Session) endSnapshot() {
	if s.snapshots = s.snapshots[1:]; len(s.snapshots) == 0 {
		s.unacked = append(s.unacked, sentMessage{revision: s.snapshotAt})
	}
}

func (s *Session) nextChanges() (*semaphorev1.PublishRequest, error) {
	for {
		entries, next, ok := s.journal.Since(s.cursor, maxBatchObjects)
		if !ok {
			return nil, errFellBehind
		}
		if len(entries) == 0 {
			s.cursor, s.completeAt = next, next
			return nil, nil
		}
		b := batch{maxChanges: s.MaxChanges}
		taken := 0
		for _, e := range entries {
			if change := s.changeFor(e); change != catalog.NoChange && !b.add(e, change) {
				break
			}
			s.cursor = e.Revision
			taken++
		}
		if taken == len(entries) && taken < maxBatchObjects {
			s.cursor, s.completeAt = next, next
		}
		if len(b.changes) > 0 {
			s.unacked = append(s.unacked, sentMessage{
				revision: b.changes[len(b.changes)-1].GetRevision(), observedAt: b.oldest,
			})
			m := s.message(&b)
			// The journal was read before: everything in it was read from the source before that.
			m.GetChanges().Sources = s.sourceRevisions(s.reportedSource)
			return m, nil
		}
		// None of these entries concern this broker.
	}
}

func (s *Session) changeFor(e *catalog.Entry) catalog.ChangeType {
	if !slices.Contains(s.kinds, e.Key.Kind) {
		return catalog.NoChange
	}
	return catalog.ChangeFor(e, s.broker, s.completeAt)
}

// behind returns the number of changes that the broker has not acknowledged; all of a snapshot count until the broker
// has acknowledged the whole snapshot. Above maxExactCount it includes changes for other clusters.
func (s *Session) behind() int {
	n, from := 0, s.acked
	if !s.resumed && s.acked < s.snapshotAt {
		n, from = s.snapshotObjects, s.snapshotAt
	}
	return n + s.journal.Count(from, maxExactCount,
		func(e *catalog.Entry) bool { return s.changeFor(e) != catalog.NoChange })
}

type batch struct {
	maxChanges int // changes
	changes    []*semaphorev1.Change
	// bytes are those of the changes, memory is that of their objects at a broker.
	bytes, memory int
	oldest        time.Time
	last          catalog.Key
}

// add adds an entry as the given change. It returns false if the entry must go into the next message.
func (b *batch) add(e *catalog.Entry, as catalog.ChangeType) bool {
	change, memory := &semaphorev1.Change{Revision: e.Revision, ObservedAt: timestamppb.New(e.ObservedAt)}, 0
	if as == catalog.Delete {
		change.Change = &semaphorev1.Change_Delete{Delete: e.Key.Proto()}
	} else {
		change.Change, memory = &semaphorev1.Change_Upsert{Upsert: e.Value.Object}, e.Value.Memory
	}
	size := proto.Size(change)
	if len(b.changes) > 0 && (b.bytes+size > maxBatchBytes || b.memory+memory > catalog.MaxMemory ||
		len(b.changes) == b.maxChanges) {
		return false
	}
	if b.oldest.IsZero() || e.ObservedAt.Before(b.oldest) {
		b.oldest = e.ObservedAt
	}
	b.changes, b.last = append(b.changes, change), e.Key
	b.bytes, b.memory = b.bytes+size, b.memory+memory
	return true
}

func (s *Session) message(b *batch) *semaphorev1.PublishRequest {
	if b.bytes > max(s.loneBytes, maxBatchBytes) {
		s.lone, s.loneBytes = b.last, b.bytes
	}
	return &semaphorev1.PublishRequest{
		Message: &semaphorev1.PublishRequest_Changes{Changes: &semaphorev1.Changes{Changes: b.changes}},
	}
}

// named adds to the end of a stream by a limit of the broker, whose version may have a lower one, the object that is
// the likely cause: the next stream sends it again.
func (s *Session) named(err error) error {
	if status.Code(err) != grpccodes.ResourceExhausted || s.loneBytes == 0 {
		return err
	}
	return status.Errorf(grpccodes.ResourceExhausted, "%s; the largest object sent has %d bytes: %s",
		status.Convert(err).Message(), s.loneBytes, s.lone)
}
