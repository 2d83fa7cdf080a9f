package replica

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Protocol versions that this broker supports.
const (
	protocolVersion    = 1
	minProtocolVersion = 1
)

// Limits of a Hello: bytes of a text, and kinds, those of later protocol versions included.
const (
	maxText  = 256
	maxKinds = 64
)

// ErrSuperseded ends a stream after a newer one of the same cluster has sent Hello.
var ErrSuperseded = errors.New("a newer stream of this cluster replaced this one")

// Session is one stream of the remote's exporter. Several may be open; only the one that sent Hello last is current.
type Session struct {
	replica *Replica
	phase   phase
	hello   *semaphorev1.Hello
	// exported are the kinds of the Hello; missing are those whose snapshot is not complete.
	exported map[semaphorev1.Kind]bool
	missing  map[semaphorev1.Kind]bool
	// resume is the revision after which Welcome offered to resume.
	resume uint64
	// snapshot is the revision of all snapshots of the session; 0 before the first.
	snapshot uint64
	staging  *staging
	// last is the newest revision received, head the newest revision that the sender announced.
	last, head uint64
}

type phase int

const (
	greeting     phase = iota // waits for Hello
	offered                   // Welcome offered to resume; the sender decides
	snapshotting              // a snapshot is missing
	live
)

// Result is the outcome of one message.
type Result struct {
	// Responses to send, in this order.
	Responses []*semaphorev1.PublishResponse
	// Changes of the accepted objects, in the order in which they must be applied.
	Changes []Change
	// Refused are the refusals among Responses.
	Refused []Refused
	// Completed is the kind whose snapshot this message completed, if it did, or an abandoned kind. Taken is the number of
	// its objects, Unchanged means that the sender sent only the digest.
	Completed semaphorev1.Kind
	Taken     int
	Unchanged bool
	// Hello is the message, if it is an accepted Hello.
	Hello *semaphorev1.Hello
	// Retained and Released are the actions of the brake.
	Retained []Retained
	Released []Released
}

func (r *Result) ack(revision uint64) {
	r.Responses = append(r.Responses, &semaphorev1.PublishResponse{Message: &semaphorev1.PublishResponse_Ack{
		Ack: &semaphorev1.Ack{Revision: revision},
	}})
}

// refuse adds the response for an object that was refused at a revision.
func (r *Result) refuse(o Refused, revision uint64) {
	key := &semaphorev1.ObjectKey{Kind: o.Key.Kind, Namespace: o.Key.Namespace, Name: o.Key.Name}
	r.Responses = append(r.Responses, &semaphorev1.PublishResponse{Message: &semaphorev1.PublishResponse_Refusal{
		Refusal: &semaphorev1.Refusal{Key: key, Revision: revision, Code: string(o.Code), Reason: o.Reason},
	}})
}

// Open begins a session. It does not affect other sessions before its Hello is accepted.
func (r *Replica) Open() *Session { return &Session{replica: r} }

// Close ends a session. Accepted objects remain; an incomplete snapshot is dropped.
func (s *Session) Close() {
	s.staging = nil
	if s.replica.current == s {
		s.replica.current = nil
	}
}

// Hello returns the Hello of the sender; nil before it was received.
func (s *Session) Hello() *semaphorev1.Hello { return s.hello }

func (s *Session) Staging() bool { return s.staging != nil }

// OverLimit returns how many of n more objects of the snapshot in progress exceed the limit of the kind.
func (s *Session) OverLimit(n int) int {
	st := s.staging
	may := s.replica.Limit(st.kind)
	switch {
	case st.limit.unknown:
		may = 0
	case may == 0:
		return 0 // no limit
	}
	return max(0, n-max(0, may-int(st.sent)))
}

// Live reports whether the sender has sent all snapshots, or resumed.
func (s *Session) Live() bool { return s.phase == live }

// Behind returns how many revisions of the sender's journal have not been received.
func (s *Session) Behind() uint64 { return max(s.head, s.last) - s.last }

func (s *Session) Current() bool { return s.replica.current == s }

// Receive handles one message. An error ends the session: ErrSuperseded if a later session has begun, or a gRPC status
// if the message breaks the protocol or a limit. Changes that the message made before the error remain.
func (s *Session) Receive(now time.Time, m *semaphorev1.PublishRequest) (Result, error) {
	if s.phase != greeting && !s.Current() {
		return Result{}, ErrSuperseded
	}
	var result Result
	var err error
	switch message := m.GetMessage().(type) {
	case *semaphorev1.PublishRequest_Hello:
		err = s.handleHello(now, message.Hello, &result)
	case *semaphorev1.PublishRequest_SnapshotBegin:
		err = s.handleSnapshotBegin(message.SnapshotBegin)
	case *semaphorev1.PublishRequest_Changes:
		err = s.handleChanges(now, message.Changes, &result)
	case *semaphorev1.PublishRequest_SnapshotEnd:
		err = s.handleSnapshotEnd(now, message.SnapshotEnd, &result)
	case *semaphorev1.PublishRequest_Heartbeat:
		err = s.handleHeartbeat(now, message.Heartbeat, &result)
	case *semaphorev1.PublishRequest_SnapshotUnchanged:
		err = s.handleUnchanged(now, message.SnapshotUnchanged, &result)
	default:
		// An unknown message of a later protocol may be ignored: a sender sends what matters only to receivers that
		// announced support for it.
		if len(m.ProtoReflect().GetUnknown()) == 0 {
			err = violation("a message without content")
		}
	}
	if err == nil {
		s.recordHeard(now)
	}
	return result, err
}

// recordHeard records the time of a message for the kinds that are complete.
func (s *Session) recordHeard(now time.Time) {
	if s.phase != snapshotting && s.phase != live {
		return
	}
	for of := range s.exported {
		if k, ok := s.replica.kinds[of]; ok && !s.missing[of] {
			k.lastHeard = now
		}
	}
}

func violation(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

func (s *Session) handleHello(now time.Time, h *semaphorev1.Hello, result *Result) error {
	r := s.replica
	switch {
	case s.phase != greeting:
		return violation("hello twice")
	case h.GetCluster() != r.cluster:
		return status.Errorf(codes.PermissionDenied, "hello.cluster %.100q: the certificate is for %q",
			h.GetCluster(), r.cluster)
	case h.GetMinProtocolVersion() > protocolVersion || h.GetProtocolVersion() < minProtocolVersion:
		return status.Errorf(codes.FailedPrecondition,
			"no common protocol version: the exporter supports %d to %d, this broker %d to %d",
			h.GetMinProtocolVersion(), h.GetProtocolVersion(), minProtocolVersion, protocolVersion)
	case h.GetEpoch() == "":
		return violation("hello.epoch is empty")
	case len(h.GetEpoch()) > maxText || len(h.GetSourceId()) > maxText || len(h.GetSoftwareVersion()) > maxText:
		return violation("hello: epoch, source_id and software_version have %d, %d and %d bytes: the limit is %d",
			len(h.GetEpoch()), len(h.GetSourceId()), len(h.GetSoftwareVersion()), maxText)
	case max(len(h.GetKinds()), len(h.GetUnreadKinds())) > maxKinds:
		return violation("hello.kinds, unread_kinds: %d and %d kinds exceed the limit of %d", len(h.GetKinds()),
			len(h.GetUnreadKinds()), maxKinds)
	case h.GetHeadRevision() < h.GetOldestRevision():
		return violation("hello.head_revision %d is before oldest_revision %d", h.GetHeadRevision(), h.GetOldestRevision())
	}
	// F24: a deposed exporter that was paused continues without knowing. A term matters only while the other exporter
	// is connected, as terms start at 1 again when a Lease is created again.
	if c := r.current; c != nil && h.GetTerm() != 0 && h.GetTerm() < c.hello.GetTerm() {
		return status.Errorf(codes.FailedPrecondition, "hello.term %d: an exporter of term %d is connected", h.GetTerm(),
			c.hello.GetTerm())
	}
	exported := map[semaphorev1.Kind]bool{}
	for _, k := range h.GetKinds() {
		if k == semaphorev1.Kind_KIND_UNSPECIFIED || exported[k] {
			return violation("hello.kinds: %s is unspecified or a duplicate", k)
		}
		exported[k] = true
		// R6: within an epoch a journal does not go back, whichever exporter was heard in between. This Hello belongs
		// to an old stream, or the exporter's state was restored from an earlier one.
		if held, ok := r.kinds[k]; ok && held.received(h.GetEpoch()) > h.GetHeadRevision() {
			return violation("hello.head_revision %d is before %d, which was received in the same epoch", h.GetHeadRevision(),
				held.received(h.GetEpoch()))
		}
	}
	// The replica keeps nothing of kinds that do not exist beyond the stream that sent them.
	maps.DeleteFunc(r.kinds, func(of semaphorev1.Kind, _ *kind) bool { return !slices.Contains(semaphorev1.Kinds, of) })
	s.head = h.GetHeadRevision()
	s.hello, s.exported, s.missing = h, exported, map[semaphorev1.Kind]bool{}
	r.current = s
	result.Hello = h
	r.markUnexported(h, now, result)
	welcome := &semaphorev1.Welcome{Cluster: r.self, ProtocolVersion: min(h.GetProtocolVersion(), protocolVersion),
		SoftwareVersion: r.software}
	if s.resume = s.resumable(); s.resume > 0 && s.resume >= h.GetOldestRevision() {
		welcome.ResumeEpoch, welcome.ResumeRevision = h.GetEpoch(), s.resume
		s.phase, s.last = offered, s.resume
	} else {
		s.expectSnapshots()
	}
	for _, of := range semaphorev1.Kinds {
		// The digest lacks refused objects that are not remembered.
		if k, ok := r.kinds[of]; ok && exported[of] && k.complete && k.notRemembered.count() == 0 && k.resync != resyncFully {
			welcome.Held = append(welcome.Held, &semaphorev1.KindState{
				Kind: of, Objects: uint64(k.count), Digest: k.sentDigest.Bytes(), SourceId: k.source.id,
				SourceRevision: k.source.revision,
			})
		}
	}
	result.Responses = append(result.Responses,
		&semaphorev1.PublishResponse{Message: &semaphorev1.PublishResponse_Welcome{Welcome: welcome}})
	return nil
}

// resumable returns the revision up to which every exported kind is complete in the sender's epoch; 0 for none.
func (s *Session) resumable() uint64 {
	var from uint64
	for of := range s.exported {
		k, ok := s.replica.kinds[of]
		if !ok || !k.complete || k.resync != noResync || k.epoch != s.hello.GetEpoch() || k.revision == 0 {
			return 0 // a snapshot of an empty journal, at revision 0, cannot be distinguished from none
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

// handleHeartbeat acknowledges the newest revision, so that the sender receives a message for each heartbeat.
func (s *Session) handleHeartbeat(now time.Time, m *semaphorev1.Heartbeat, result *Result) error {
	switch {
	case s.phase == greeting:
		return violation("heartbeat before hello")
	case m.GetSentRevision() > m.GetHeadRevision():
		return violation("heartbeat.sent_revision %d is after head_revision %d", m.GetSentRevision(), m.GetHeadRevision())
	case s.phase == offered && m.GetSentRevision() >= s.resume:
		// The sender resumes at the offered revision, and has had no change for this broker since.
		s.phase, s.last = live, s.resume
		s.repeatRefusals(result, s.hello.GetKinds()...)
	}
	s.head = max(s.head, m.GetHeadRevision())
	switch s.phase {
	case offered:
		result.ack(s.resume)
	case live:
		if m.GetSentRevision() > s.last {
			s.advance(m.GetSentRevision())
		}
		s.recordSources(m.GetSources())
		result.ack(s.last)
		return s.requestResync(now)
	}
	return nil
}

func (s *Session) recordSources(sources []*semaphorev1.SourceRevision) {
	for _, source := range sources {
		if s.exported[source.GetKind()] {
			s.replica.kind(source.GetKind()).source.advance(s.hello.GetSourceId(), source.GetSourceRevision())
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

func (s *Session) handleSnapshotBegin(m *semaphorev1.SnapshotBegin) error {
	if err := s.mayBegin(m.GetKind(), m.GetRevision()); err != nil {
		return err
	}
	s.staging = newStaging(m.GetKind(), m.GetRevision(), limitOf(m.GetKind(), s.replica.limits))
	return nil
}

// mayBegin checks that a snapshot, or the digest in place of one, is allowed now.
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
		return violation("snapshot of %s, which is not in hello.kinds or was complete already", name)
	case revision < s.hello.GetHeadRevision():
		return violation("snapshot of revision %d, before hello.head_revision %d", revision, s.hello.GetHeadRevision())
	case s.snapshot != 0 && revision != s.snapshot:
		return violation("snapshot of revision %d after one of %d: all must have one revision", revision, s.snapshot)
	}
	s.snapshot = revision
	return nil
}

func (s *Session) handleUnchanged(now time.Time, m *semaphorev1.SnapshotUnchanged, result *Result) error {
	if err := s.mayBegin(m.GetKind(), m.GetRevision()); err != nil {
		return err
	}
	k := s.replica.kind(m.GetKind())
	sent, ok := streams.ParseDigest(m.GetDigest())
	if !ok || !k.complete || k.notRemembered.count() > 0 || k.resync == resyncFully || sent != k.sentDigest ||
		m.GetObjects() != uint64(k.count) {
		return violation("unchanged snapshot of %s with %d objects and digest %.32x: the broker has %d with digest %x",
			semaphorev1.KindName(m.GetKind()), m.GetObjects(), m.GetDigest(), k.count, k.sentDigest)
	}
	result.Unchanged = true
	s.repeatRefusals(result, m.GetKind())
	s.replica.releaseConfirmed(k, m.GetKind(), now, result)
	s.completeKind(now, m.GetKind(), k, m.GetRevision(), m.GetSourceRevision(), result)
	return nil
}

// repeatRefusals adds the refusals of kinds of which no snapshot comes: they may not have reached this exporter.
func (s *Session) repeatRefusals(result *Result, kinds ...semaphorev1.Kind) {
	for _, o := range s.replica.Refused() {
		if slices.Contains(kinds, o.Key.Kind) {
			result.refuse(o, cmp.Or(s.snapshot, s.replica.kinds[o.Key.Kind].revision))
		}
	}
}

// completeKind ends the snapshot of a kind, whose contents are in k.
func (s *Session) completeKind(now time.Time, of semaphorev1.Kind, k *kind, revision, sourceRevision uint64,
	result *Result) {
	result.Completed, result.Taken = of, len(k.objects)
	k.setPosition(s.hello.GetEpoch(), revision)
	k.source.advance(s.hello.GetSourceId(), sourceRevision)
	k.snapshotAt, k.resync = now, noResync
	k.resyncInterval = min(max(minResyncInterval, 2*k.resyncInterval), maxResyncInterval)
	if k.overLimit == 0 && k.notRemembered.count() == 0 {
		k.resyncInterval = 0
	}
	delete(s.missing, of)
	if len(s.missing) == 0 {
		s.phase, s.last = live, s.snapshot
		result.ack(s.snapshot)
	}
}

func (s *Session) handleSnapshotEnd(now time.Time, m *semaphorev1.SnapshotEnd, result *Result) error {
	st := s.staging
	switch {
	case st == nil:
		return violation("end of a snapshot that did not begin")
	case m.GetKind() != st.kind || m.GetRevision() != st.revision:
		return violation("end of a snapshot of %s at %d within that of %s at %d", semaphorev1.KindName(m.GetKind()),
			m.GetRevision(), semaphorev1.KindName(st.kind), st.revision)
	case m.GetObjects() != st.sent:
		return violation("the snapshot of %s had %d objects, and its end mark counts %d", semaphorev1.KindName(st.kind),
			st.sent, m.GetObjects())
	}
	k := s.replica.kind(st.kind)
	if !k.complete {
		// The objects of the first snapshot may have existed for long: their times do not measure how long a change
		// takes.
		clear(st.observed)
	}
	s.replica.applySnapshot(k, st, now, result)
	s.replica.releaseIfRecovered(k, st.kind, now, result)
	s.staging = nil
	s.completeKind(now, st.kind, k, st.revision, m.GetSourceRevision(), result)
	return nil
}

func (s *Session) handleChanges(now time.Time, m *semaphorev1.Changes, result *Result) error {
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
		s.repeatRefusals(result, s.hello.GetKinds()...)
	}
	s.recordSources(m.GetSources())
	for _, c := range all {
		if c.GetRevision() <= s.last {
			return violation("revision %d after %d: revisions must grow", c.GetRevision(), s.last)
		}
		if err := s.handleChange(now, c, result); err != nil {
			return err
		}
		s.last = c.GetRevision()
	}
	for of := range s.exported {
		s.replica.releaseIfRecovered(s.replica.kind(of), of, now, result)
	}
	s.advance(s.last)
	if len(all) > 0 {
		result.ack(s.last)
	}
	return nil
}

func (s *Session) handleChange(now time.Time, c *semaphorev1.Change, result *Result) error {
	var key Key
	switch change := c.GetChange().(type) {
	case *semaphorev1.Change_Upsert:
		key = KeyOf(change.Upsert.GetKey())
	case *semaphorev1.Change_Delete:
		key = KeyOf(change.Delete)
	default:
		return violation("revision %d contains no change", c.GetRevision())
	}
	if !s.exported[key.Kind] {
		return violation("revision %d is about a %s, which is not in hello.kinds", c.GetRevision(),
			semaphorev1.KindName(key.Kind))
	}
	k := s.replica.kind(key.Kind)
	if c.GetRevision() <= k.revision {
		return nil // the stream resumed at an earlier revision for another kind
	}
	old := k.objects[key].object
	var taken *semaphorev1.Object
	if upsert := c.GetUpsert(); upsert != nil {
		before := len(result.Refused)
		taken = s.replica.accept(k, upsert, c.GetRevision(), now, result)
		for i := range result.Refused[before:] {
			result.Refused[before+i].ObservedAt = observedAt(c)
		}
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
			return violation("revision %d within a snapshot is not an upsert", c.GetRevision())
		}
		key := KeyOf(upsert.GetKey())
		_, twice := st.digestOf(key)
		switch {
		case key.Kind != st.kind:
			return violation("a %s in the snapshot of %s", semaphorev1.KindName(key.Kind), semaphorev1.KindName(st.kind))
		case c.GetRevision() <= st.last || c.GetRevision() > st.revision:
			return violation("revision %d after %d in a snapshot of revision %d: revisions must grow", c.GetRevision(), st.last,
				st.revision)
		case twice:
			return violation("%s is in the snapshot twice", key)
		}
		st.last = c.GetRevision()
		st.sent++
		if at := observedAt(c); s.replica.stage(st, upsert, c.GetRevision(), now, result) && !at.IsZero() {
			st.observed[key] = at
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
