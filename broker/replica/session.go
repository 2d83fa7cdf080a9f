package replica

import (
	"errors"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/internal/stream/digest"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// The versions of the protocol that this broker speaks.
const (
	protocolVersion    = 1
	minProtocolVersion = 1
)

// What a Hello may hold: bytes of a word, and kinds, those of later versions among them.
const (
	maxWord  = 256
	maxKinds = 64
)

// ErrSuperseded is what a stream gets after a newer one of the same cluster has said Hello.
var ErrSuperseded = errors.New("a newer stream of this cluster has taken over")

// Session is one stream of the remote's exporter. Any number may be open; the one that
// said Hello last is heard.
type Session struct {
	replica *Replica
	phase   phase
	hello   *semaphorev1.Hello
	// exported are the kinds of the Hello; missing those whose snapshot has not come whole.
	exported map[semaphorev1.Kind]bool
	missing  map[semaphorev1.Kind]bool
	// resume is the revision that Welcome offered to go on from.
	resume uint64
	// snapshot is the moment that all snapshots of the session are of; 0 before the first.
	snapshot uint64
	staging  *staging
	// last is the newest revision taken, head the newest that the sender said it has.
	last, head uint64
}

type phase int

const (
	greeting     phase = iota // waiting for Hello
	offered                   // Welcome offered to go on; the sender decides
	snapshotting              // some kind's snapshot is missing
	live
)

// Result is what one message led to.
type Result struct {
	// Responses to send, in this order.
	Responses []*semaphorev1.PublishResponse
	// Changes to what is held, in the order they are to be followed.
	Changes []Change
	// Refused are the refusals among Responses, as they are remembered.
	Refused []Refused
	// Completed is the kind whose snapshot was taken over by this message, if one was. Taken is
	// how many objects it holds now, Unchanged that the sender had nothing to tell beyond its digest.
	Completed semaphorev1.Kind
	Taken     int
	Unchanged bool
	// HeldBack and Released are what the brake did.
	HeldBack []HeldBack
	Released []Released
}

func (r *Result) ack(revision uint64) {
	r.Responses = append(r.Responses, &semaphorev1.PublishResponse{Message: &semaphorev1.PublishResponse_Ack{
		Ack: &semaphorev1.Ack{Revision: revision},
	}})
}

// Open begins a session. It disturbs no other before its Hello is accepted.
func (r *Replica) Open() *Session { return &Session{replica: r} }

// Close ends a session. Nothing that is held changes; a snapshot that has not ended is forgotten.
func (s *Session) Close() {
	s.staging = nil
	if s.replica.current == s {
		s.replica.current = nil
	}
}

// Hello is what the sender said of itself; nil before it did.
func (s *Session) Hello() *semaphorev1.Hello { return s.hello }

// Staging says whether a snapshot has begun and not ended.
func (s *Session) Staging() bool { return s.staging != nil }

// Beyond is how many of n more objects of the snapshot that has begun are beyond what may be held of the kind.
func (s *Session) Beyond(n int) int {
	st := s.staging
	may := st.limit.objects
	switch {
	case st.limit.unknown:
		may = 0
	case may == 0:
		return 0 // there is no limit
	}
	return max(0, n-max(0, may-int(st.sent)))
}

// Live says whether the snapshots are over, or the sender goes on without any.
func (s *Session) Live() bool { return s.phase == live }

// Behind is how many revisions of the sender's journal are not taken yet.
func (s *Session) Behind() uint64 {
	return max(s.head, s.last) - s.last
}

// Current says whether this is the session that is heard.
func (s *Session) Current() bool { return s.replica.current == s }

// Receive takes one message at a time. An error ends the session: it is a gRPC status, or
// ErrSuperseded. What the message changed before the error stays changed.
func (s *Session) Receive(now time.Time, m *semaphorev1.PublishRequest) (Result, error) {
	if s.phase != greeting && !s.Current() {
		return Result{}, ErrSuperseded
	}
	var result Result
	var err error
	switch message := m.GetMessage().(type) {
	case *semaphorev1.PublishRequest_Hello:
		err = s.greet(message.Hello, &result)
	case *semaphorev1.PublishRequest_SnapshotBegin:
		err = s.begin(message.SnapshotBegin)
	case *semaphorev1.PublishRequest_Changes:
		err = s.changes(now, message.Changes, &result)
	case *semaphorev1.PublishRequest_SnapshotEnd:
		err = s.end(now, message.SnapshotEnd, &result)
	case *semaphorev1.PublishRequest_Heartbeat:
		err = s.beat(now, message.Heartbeat, &result)
	case *semaphorev1.PublishRequest_SnapshotUnchanged:
		err = s.unchanged(now, message.SnapshotUnchanged, &result)
	default:
		// A later protocol's may be passed over: what matters is only said to those who said that they
		// understand it.
		if len(m.ProtoReflect().GetUnknown()) == 0 {
			err = violation("a message that holds nothing")
		}
	}
	if err == nil {
		s.heard(now)
	}
	return result, err
}

// heard notes that the sender has spoken for the kinds that it told whole.
func (s *Session) heard(now time.Time) {
	if s.phase != snapshotting && s.phase != live {
		return
	}
	for of := range s.exported {
		if k, ok := s.replica.kinds[of]; ok && !s.missing[of] {
			k.heard = now
		}
	}
}

func violation(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

func (s *Session) greet(h *semaphorev1.Hello, result *Result) error {
	r := s.replica
	switch {
	case s.phase != greeting:
		return violation("hello twice")
	case h.GetCluster() != r.cluster:
		return status.Errorf(codes.PermissionDenied, "hello.cluster %.100q: the certificate is that of %q", h.GetCluster(), r.cluster)
	case h.GetMinProtocolVersion() > protocolVersion || h.GetProtocolVersion() < minProtocolVersion:
		return status.Errorf(codes.FailedPrecondition, "no protocol version in common: the exporter speaks %d to %d, this broker %d to %d",
			h.GetMinProtocolVersion(), h.GetProtocolVersion(), minProtocolVersion, protocolVersion)
	case h.GetEpoch() == "":
		return violation("hello.epoch is empty")
	case len(h.GetEpoch()) > maxWord || len(h.GetSourceId()) > maxWord || len(h.GetSoftwareVersion()) > maxWord:
		return violation("hello: epoch, source_id and software_version have %d, %d and %d bytes: %d is the most",
			len(h.GetEpoch()), len(h.GetSourceId()), len(h.GetSoftwareVersion()), maxWord)
	case len(h.GetKinds()) > maxKinds:
		return violation("hello.kinds: %d, and %d is the most", len(h.GetKinds()), maxKinds)
	case h.GetHeadRevision() < h.GetOldestRevision():
		return violation("hello.head_revision %d is before oldest_revision %d", h.GetHeadRevision(), h.GetOldestRevision())
	}
	// F24: an exporter that was deposed while it was stopped comes back and does not know. One that is gone
	// keeps nobody out: terms begin anew when a Lease is made anew.
	if c := r.current; c != nil && h.GetTerm() != 0 && h.GetTerm() < c.hello.GetTerm() {
		return status.Errorf(codes.FailedPrecondition, "hello.term %d: an exporter of term %d is connected", h.GetTerm(), c.hello.GetTerm())
	}
	exported := map[semaphorev1.Kind]bool{}
	for _, k := range h.GetKinds() {
		if k == semaphorev1.Kind_KIND_UNSPECIFIED || exported[k] {
			return violation("hello.kinds: %s is unspecified or there twice", k)
		}
		exported[k] = true
		// R6: within an epoch a journal does not go back, whoever was heard meanwhile. This one is an old
		// stream's, or the exporter's state was put back to an earlier one.
		if held, ok := r.kinds[k]; ok && held.taken(h.GetEpoch()) > h.GetHeadRevision() {
			return violation("hello.head_revision %d is before %d, which was taken in the same epoch", h.GetHeadRevision(), held.taken(h.GetEpoch()))
		}
	}
	// Of kinds that do not exist nothing is kept beyond the stream that had them.
	maps.DeleteFunc(r.kinds, func(of semaphorev1.Kind, _ *kind) bool { return !slices.Contains(Kinds, of) })
	s.head = h.GetHeadRevision()
	s.hello, s.exported, s.missing = h, exported, map[semaphorev1.Kind]bool{}
	r.current = s
	welcome := &semaphorev1.Welcome{Cluster: r.self, ProtocolVersion: min(h.GetProtocolVersion(), protocolVersion), SoftwareVersion: r.software}
	if s.resume = s.resumable(); s.resume > 0 && s.resume >= h.GetOldestRevision() {
		welcome.ResumeEpoch, welcome.ResumeRevision = h.GetEpoch(), s.resume
		s.phase, s.last = offered, s.resume
	} else {
		s.expectSnapshots()
	}
	for _, of := range Kinds {
		// Of objects that were refused and are not remembered the digest knows nothing.
		if k, ok := r.kinds[of]; ok && exported[of] && k.complete && k.forgotten == 0 && k.anew != whole {
			welcome.Held = append(welcome.Held, &semaphorev1.KindState{
				Kind: of, Objects: uint64(k.count), Digest: k.told.Bytes(), SourceId: k.source.id, SourceRevision: k.source.revision,
			})
		}
	}
	result.Responses = append(result.Responses, &semaphorev1.PublishResponse{Message: &semaphorev1.PublishResponse_Welcome{Welcome: welcome}})
	return nil
}

// resumable is the revision up to which every exported kind is held whole, in the sender's epoch; 0 for none.
func (s *Session) resumable() uint64 {
	var from uint64
	for of := range s.exported {
		k, ok := s.replica.kinds[of]
		if !ok || !k.complete || k.anew != nothing || k.epoch != s.hello.GetEpoch() || k.revision == 0 {
			return 0 // a snapshot of an empty journal, at revision 0, cannot be told from none
		}
		if from == 0 || k.revision < from {
			from = k.revision
		}
	}
	return from
}

func (s *Session) expectSnapshots() {
	s.phase = snapshotting
	for of := range s.exported {
		s.missing[of] = true
	}
	if len(s.missing) == 0 {
		s.phase = live
	}
}

// beat answers a heartbeat with where we stand, so that the sender hears of us as often as we of it.
func (s *Session) beat(now time.Time, m *semaphorev1.Heartbeat, result *Result) error {
	switch {
	case s.phase == greeting:
		return violation("heartbeat before hello")
	case m.GetSentRevision() > m.GetHeadRevision():
		return violation("heartbeat.sent_revision %d is after head_revision %d", m.GetSentRevision(), m.GetHeadRevision())
	case s.phase == offered && m.GetSentRevision() >= s.resume:
		// The sender goes on from where we offered, and had nothing for us since.
		s.phase, s.last = live, s.resume
	}
	s.head = max(s.head, m.GetHeadRevision())
	switch s.phase {
	case offered:
		result.ack(s.resume)
	case live:
		if m.GetSentRevision() > s.last {
			s.advance(m.GetSentRevision())
		}
		s.read(m.GetSources())
		result.ack(s.last)
		return s.anew(now)
	}
	return nil
}

// read notes how far the sender has read its source.
func (s *Session) read(sources []*semaphorev1.SourceRevision) {
	for _, source := range sources {
		if s.exported[source.GetKind()] {
			s.replica.kind(source.GetKind()).source.seen(s.hello.GetSourceId(), source.GetSourceRevision())
		}
	}
}

// advance moves the position of every kind of the stream.
func (s *Session) advance(to uint64) {
	s.last = to
	for of := range s.exported {
		k := s.replica.kind(of)
		k.revision = max(k.revision, to)
	}
}

func (s *Session) begin(m *semaphorev1.SnapshotBegin) error {
	if err := s.mayBegin(m.GetKind(), m.GetRevision()); err != nil {
		return err
	}
	s.staging = newStaging(m.GetKind(), m.GetRevision(), limitOf(m.GetKind(), s.replica.limits))
	return nil
}

// mayBegin checks that a snapshot, or what stands for one, is in order.
func (s *Session) mayBegin(of semaphorev1.Kind, revision uint64) error {
	if s.phase == offered {
		s.expectSnapshots()
	}
	name := semaphorev1.KindName(of)
	switch {
	case s.phase == greeting:
		return violation("snapshot before hello")
	case s.phase == live:
		return violation("snapshot of %s after the last snapshot of the stream", name)
	case s.staging != nil:
		return violation("snapshot of %s within that of %s", name, semaphorev1.KindName(s.staging.kind))
	case !s.missing[of]:
		return violation("snapshot of %s, which is not in hello.kinds or has come already", name)
	case revision < s.hello.GetHeadRevision():
		return violation("snapshot of revision %d, before hello.head_revision %d", revision, s.hello.GetHeadRevision())
	case s.snapshot != 0 && revision != s.snapshot:
		return violation("snapshot of revision %d after one of %d: all must be of one moment", revision, s.snapshot)
	}
	s.snapshot = revision
	return nil
}

// unchanged takes a digest for a whole snapshot.
func (s *Session) unchanged(now time.Time, m *semaphorev1.SnapshotUnchanged, result *Result) error {
	if err := s.mayBegin(m.GetKind(), m.GetRevision()); err != nil {
		return err
	}
	k := s.replica.kind(m.GetKind())
	told, ok := digest.Parse(m.GetDigest())
	if !ok || !k.complete || k.forgotten > 0 || k.anew == whole || told != k.told || m.GetObjects() != uint64(k.count) {
		return violation("the snapshot of %s is said to be unchanged, with %d objects and the digest %x; held are %d with %x",
			semaphorev1.KindName(m.GetKind()), m.GetObjects(), m.GetDigest(), k.count, k.told)
	}
	result.Unchanged = true
	// The sender may be another than was told of what is refused.
	for _, key := range slices.SortedFunc(maps.Keys(k.refused), Key.Compare) {
		r := k.refused[key]
		result.Responses = append(result.Responses, &semaphorev1.PublishResponse{Message: &semaphorev1.PublishResponse_Refusal{
			Refusal: &semaphorev1.Refusal{Key: r.Key.Proto(), Revision: m.GetRevision(), Code: string(r.Code), Reason: r.Reason},
		}})
	}
	s.replica.confirm(k, m.GetKind(), now, result)
	s.complete(now, m.GetKind(), k, m.GetRevision(), m.GetSourceRevision(), result)
	return nil
}

// complete ends a kind's snapshot, whose contents k has.
func (s *Session) complete(now time.Time, of semaphorev1.Kind, k *kind, revision, sourceRevision uint64, result *Result) {
	result.Completed, result.Taken = of, len(k.objects)
	k.enter(s.hello.GetEpoch(), revision)
	k.source.seen(s.hello.GetSourceId(), sourceRevision)
	k.snapshotAt, k.anew = now, nothing
	if k.over == 0 && k.forgotten == 0 {
		k.patience = 0
	} else {
		k.patience = min(max(minAnew, 2*k.patience), maxAnew)
	}
	delete(s.missing, of)
	if len(s.missing) == 0 {
		s.phase, s.last = live, s.snapshot
		result.ack(s.snapshot)
	}
}

func (s *Session) end(now time.Time, m *semaphorev1.SnapshotEnd, result *Result) error {
	st := s.staging
	switch {
	case st == nil:
		return violation("end of a snapshot that did not begin")
	case m.GetKind() != st.kind || m.GetRevision() != st.revision:
		return violation("end of a snapshot of %s at %d within that of %s at %d", semaphorev1.KindName(m.GetKind()), m.GetRevision(), semaphorev1.KindName(st.kind), st.revision)
	case m.GetObjects() != st.sent:
		return violation("the snapshot of %s had %d objects, and its end says %d", semaphorev1.KindName(st.kind), st.sent, m.GetObjects())
	}
	k := s.replica.kind(st.kind)
	if !k.complete {
		// The first snapshot tells how things have long been: when they came to be so is no measure of how long
		// a change takes.
		clear(st.observed)
	}
	s.replica.takeOver(k, st, now, result)
	s.replica.recover(k, st.kind, now, result)
	s.staging = nil
	s.complete(now, st.kind, k, st.revision, m.GetSourceRevision(), result)
	return nil
}

func (s *Session) changes(now time.Time, m *semaphorev1.Changes, result *Result) error {
	all := m.GetChanges()
	if s.staging != nil {
		return s.stage(now, all, result)
	}
	switch s.phase {
	case greeting:
		return violation("changes before hello")
	case snapshotting:
		return violation("changes before the snapshots of all kinds")
	case offered:
		s.phase, s.last = live, s.resume
	}
	s.read(m.GetSources())
	for _, c := range all {
		if c.GetRevision() <= s.last {
			return violation("revision %d after %d: revisions grow", c.GetRevision(), s.last)
		}
		if err := s.change(now, c, result); err != nil {
			return err
		}
		s.last = c.GetRevision()
	}
	for of := range s.exported {
		s.replica.recover(s.replica.kind(of), of, now, result)
	}
	s.advance(s.last)
	if len(all) > 0 {
		result.ack(s.last)
	}
	return nil
}

func (s *Session) change(now time.Time, c *semaphorev1.Change, result *Result) error {
	var key Key
	switch change := c.GetChange().(type) {
	case *semaphorev1.Change_Upsert:
		key = KeyOf(change.Upsert.GetKey())
	case *semaphorev1.Change_Delete:
		key = KeyOf(change.Delete)
	default:
		return violation("revision %d holds no change", c.GetRevision())
	}
	if !s.exported[key.Kind] {
		return violation("revision %d is about a %s, which is not in hello.kinds", c.GetRevision(), semaphorev1.KindName(key.Kind))
	}
	k := s.replica.kind(key.Kind)
	if c.GetRevision() <= k.revision {
		return nil // resumed from an earlier revision, for another kind's sake
	}
	old := k.objects[key].object
	var taken *semaphorev1.Object
	if upsert := c.GetUpsert(); upsert != nil {
		taken = s.replica.accept(k, upsert, c.GetRevision(), now, result)
	} else {
		if !s.replica.withdraw(k, key, now, result) {
			return nil
		}
		k.remove(key)
	}
	if old == nil && taken == nil || old != nil && taken != nil && proto.Equal(old, taken) {
		return nil
	}
	result.Changes = append(result.Changes, Change{key, old, taken, observedAt(c)})
	return nil
}

func (s *Session) stage(now time.Time, all []*semaphorev1.Change, result *Result) error {
	st := s.staging
	for _, c := range all {
		upsert := c.GetUpsert()
		if upsert == nil {
			return violation("revision %d within a snapshot is no upsert", c.GetRevision())
		}
		key := KeyOf(upsert.GetKey())
		_, twice := st.has(key)
		switch {
		case key.Kind != st.kind:
			return violation("a %s in the snapshot of %s", semaphorev1.KindName(key.Kind), semaphorev1.KindName(st.kind))
		case c.GetRevision() <= st.last || c.GetRevision() > st.revision:
			return violation("revision %d after %d in a snapshot of revision %d: revisions grow", c.GetRevision(), st.last, st.revision)
		case twice:
			return violation("%s is in the snapshot twice", key)
		}
		st.last = c.GetRevision()
		st.sent++
		if s.replica.stage(st, upsert, c.GetRevision(), now, result) {
			if at := observedAt(c); !at.IsZero() {
				st.observed[key] = at
			}
		}
	}
	return nil
}

func observedAt(c *semaphorev1.Change) time.Time {
	if c.GetObservedAt().IsValid() {
		return c.GetObservedAt().AsTime()
	}
	return time.Time{}
}
