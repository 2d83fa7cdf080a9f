package replica

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

const (
	kNode    = semaphorev1.Kind_KIND_NODE
	kService = semaphorev1.Kind_KIND_SERVICE
	kSlice   = semaphorev1.Kind_KIND_ENDPOINT_SLICE
	kMember  = semaphorev1.Kind_KIND_SET_MEMBER
)

var now = time.Unix(1_800_000_000, 0)

// admit refuses whatever is named "bad…" or of the version "bad" whole, and "half…" in part.
func admit(o *semaphorev1.Object) (*semaphorev1.Object, []admission.Refusal) {
	refusal := []admission.Refusal{{Code: finding.Malformed, Reason: "for the test"}}
	switch name := o.GetKey().GetName(); {
	case strings.HasPrefix(name, "bad"), proto.Equal(o, object(o.GetKey().GetKind(), name, "bad")):
		return nil, refusal
	case strings.HasPrefix(name, "half"):
		return o, refusal
	}
	return o, nil
}

func newReplica() *Replica { return New("c2", "c1", "test", admit) }

func hello(epoch string, head, oldest uint64, kinds ...semaphorev1.Kind) *semaphorev1.PublishRequest {
	m := players.Hello("c2", epoch, head, kinds...)
	m.GetHello().OldestRevision = oldest
	return m
}

// The messages of an exporter.
var begin, end, changes, unchanged, sent = players.Begin, players.End, players.Changes, players.Unchanged, players.Beat

func heartbeat(head uint64) *semaphorev1.PublishRequest { return sent(head, 0) }

func digestOf(upserts []*semaphorev1.Change) streams.Digest {
	var sum streams.Digest
	for _, c := range upserts {
		sum.Add(streams.DigestOf(c.GetUpsert()))
	}
	return sum
}

// object is an object of a kind whose content is version; of "hollow" nothing follows.
func object(kind semaphorev1.Kind, name, version string) *semaphorev1.Object {
	o := &semaphorev1.Object{Key: &semaphorev1.ObjectKey{Kind: kind, Namespace: "ns", Name: name}}
	switch kind {
	case kNode:
		o.Key.Namespace = ""
		o.Spec = &semaphorev1.Object_Node{Node: &semaphorev1.Node{PodCidrs: []string{version},
			Wireguard: &semaphorev1.WireGuardEndpoint{}}}
	case kService:
		o.Spec = &semaphorev1.Object_Service{Service: &semaphorev1.Service{Mirror: true,
			Ports: []*semaphorev1.Port{{Name: version}}}}
	case kSlice:
		o.Spec = &semaphorev1.Object_EndpointSlice{EndpointSlice: &semaphorev1.EndpointSlice{Service: version,
			Endpoints: []*semaphorev1.Endpoint{{Addresses: []string{"10.2.0.1"}}}}}
	default:
		o.Spec = &semaphorev1.Object_SetMember{SetMember: &semaphorev1.SetMember{SetName: version, Ips: []string{"10.2.0.1"}}}
	}
	if version == "hollow" {
		switch kind {
		case kNode:
			o.GetNode().Wireguard = nil
		case kService:
			o.GetService().Mirror = false
		case kSlice:
			o.GetEndpointSlice().Endpoints = nil
		default:
			o.GetSetMember().Ips = nil
		}
	}
	return o
}

func upsert(revision uint64, kind semaphorev1.Kind, name, version string) *semaphorev1.Change {
	return &semaphorev1.Change{Revision: revision, ObservedAt: timestamppb.New(now.Add(time.Duration(revision))),
		Change: &semaphorev1.Change_Upsert{Upsert: object(kind, name, version)}}
}

func remove(revision uint64, kind semaphorev1.Kind, name string) *semaphorev1.Change {
	return &semaphorev1.Change{Revision: revision, Change: &semaphorev1.Change_Delete{Delete: object(kind, name, "").Key}}
}

// must feeds messages that are all in order, and returns the last result.
func must(t *testing.T, s *Session, all ...*semaphorev1.PublishRequest) Result {
	t.Helper()
	var result Result
	for _, m := range all {
		var err error
		if result, err = s.Receive(now, m); err != nil {
			t.Fatalf("%v: %v", m, err)
		}
	}
	return result
}

func welcomeOf(t *testing.T, r Result) *semaphorev1.Welcome {
	t.Helper()
	if len(r.Responses) != 1 || r.Responses[0].GetWelcome() == nil {
		t.Fatalf("responses %v, want one Welcome", r.Responses)
	}
	return r.Responses[0].GetWelcome()
}

func ackOf(r Result) (uint64, bool) {
	for _, m := range r.Responses {
		if a := m.GetAck(); a != nil {
			return a.GetRevision(), true
		}
	}
	return 0, false
}

func show(changes []Change) string {
	var parts []string
	for _, c := range changes {
		switch {
		case c.Old == nil:
			parts = append(parts, "+"+c.Key.Name)
		case c.New == nil:
			parts = append(parts, "-"+c.Key.Name)
		default:
			parts = append(parts, "~"+c.Key.Name)
		}
	}
	return strings.Join(parts, " ")
}

// Get returns an accepted object.
func (r *Replica) Get(key Key) (*semaphorev1.Object, bool) {
	h, ok := r.kind(key.Kind).objects[key]
	return h.object, ok
}

// changed checks what a message changed.
func changed(t *testing.T, r Result, want string) {
	t.Helper()
	if got := show(r.Changes); got != want {
		t.Errorf("changes %s, want %s", got, want)
	}
}

func TestSnapshotIsAppliedAtItsEnd(t *testing.T) {
	r := newReplica()
	s := r.Open()
	w := welcomeOf(t, must(t, s, hello("e1", 3, 0, kNode, kService)))
	if w.ResumeEpoch != "" || w.ResumeRevision != 0 || w.Cluster != "c1" || w.ProtocolVersion != 1 {
		t.Errorf("welcome %v", w)
	}
	res := must(t, s, begin(kNode, 3), changes(upsert(1, kNode, "n1", "a"), upsert(2, kNode, "n2", "a")))
	if n, _ := r.Count(kNode); n != 0 || len(res.Changes) != 0 || r.Complete(kNode) {
		t.Errorf("before the end mark: %d nodes, changes %s, complete %v", n, show(res.Changes), r.Complete(kNode))
	}
	res = must(t, s, end(kNode, 3, 2))
	if show(res.Changes) != "+n1 +n2" || !r.Complete(kNode) || res.Completed != kNode || res.Taken != 2 {
		t.Errorf("at the end mark: %s, complete %v, result %+v", show(res.Changes), r.Complete(kNode), res)
	}
	if got := res.Changes[0].ObservedAt; !got.IsZero() {
		t.Errorf("what the first snapshot has is no change, and was observed at %v", got)
	}
	if _, acked := ackOf(res); acked {
		t.Error("acknowledged before the snapshot of services")
	}
	res = must(t, s, begin(kService, 3), changes(upsert(3, kService, "s", "a")), end(kService, 3, 1))
	if rev, acked := ackOf(res); !acked || rev != 3 {
		t.Errorf("ack %d %v", rev, acked)
	}
	res = must(t, s, heartbeat(3), changes(upsert(4, kNode, "n1", "b"), remove(5, kNode, "n2"),
		remove(6, kNode, "unknown"), upsert(9, kService, "s", "a")))
	changed(t, res, "~n1 -n2")
	if rev, _ := ackOf(res); rev != 9 {
		t.Errorf("ack %d", rev)
	}
}

func TestNewEpochIsTakenByDifference(t *testing.T) {
	r := newReplica()
	must(t, r.Open(), hello("e1", 3, 0, kNode), begin(kNode, 3),
		changes(upsert(1, kNode, "same", "a"), upsert(2, kNode, "other", "a"), upsert(3, kNode, "gone", "a")),
		end(kNode, 3, 3))
	s := r.Open()
	if w := welcomeOf(t, must(t, s, hello("e2", 9, 0, kNode))); w.ResumeEpoch != "" {
		t.Errorf("offered to go on in another epoch: %v", w)
	}
	must(t, s, begin(kNode, 9), changes(upsert(7, kNode, "new", "a"), upsert(8, kNode, "same", "a"),
		upsert(9, kNode, "other", "b")))
	if !r.Complete(kNode) {
		t.Error("what was complete no longer is while a newer snapshot comes")
	}
	res := must(t, s, end(kNode, 9, 3))
	if show(res.Changes) != "-gone +new ~other" {
		t.Fatalf("changes %s", show(res.Changes))
	}
	if got := res.Changes[1].ObservedAt; !got.Equal(now.Add(7)) || !res.Changes[0].ObservedAt.IsZero() {
		t.Errorf("observed at %v and %v; want the time of the change, and none for what shows only by its absence", got,
			res.Changes[0].ObservedAt)
	}
}

func TestStreamThatEndsWithinASnapshotChangesNothing(t *testing.T) {
	r := newReplica()
	must(t, r.Open(), hello("e1", 1, 0, kNode), begin(kNode, 1), changes(upsert(1, kNode, "n1", "a")), end(kNode, 1, 1))
	s := r.Open()
	must(t, s, hello("e2", 1, 0, kNode), begin(kNode, 1), changes(upsert(1, kNode, "badx", "b")))
	s.Close()
	if n, refused := r.Count(kNode); n != 1 || refused != 0 || !r.Complete(kNode) {
		t.Errorf("%d nodes, %d refused, complete %v", n, refused, r.Complete(kNode))
	}
	if w := welcomeOf(t, must(t, r.Open(), hello("e1", 1, 0, kNode))); w.ResumeRevision != 1 {
		t.Errorf("welcome %v: what is held is still that of e1 at 1", w)
	}
}

func TestResume(t *testing.T) {
	snapshot := func(t *testing.T) *Replica {
		r := newReplica()
		s := r.Open()
		must(t, s, hello("e1", 5, 0, kNode, kService), begin(kNode, 5), changes(upsert(4, kNode, "n1", "a")),
			end(kNode, 5, 1),
			begin(kService, 5), changes(upsert(5, kService, "s", "a")), end(kService, 5, 1))
		s.Close()
		return r
	}
	for _, c := range []struct {
		name  string
		hello *semaphorev1.PublishRequest
		want  uint64
	}{
		{"same epoch", hello("e1", 7, 0, kNode, kService), 5},
		{"nothing since", hello("e1", 5, 5, kNode, kService), 5},
		{"fewer kinds", hello("e1", 7, 0, kNode), 5},
		{"another epoch", hello("e2", 7, 0, kNode, kService), 0},
		{"a kind never seen", hello("e1", 7, 0, kNode, kService, kMember), 0},
		{"forgotten by the sender", hello("e1", 9, 6, kNode, kService), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if w := welcomeOf(t, must(t, snapshot(t).Open(), c.hello)); w.ResumeRevision != c.want ||
				(w.ResumeEpoch == "e1") != (c.want > 0) {
				t.Errorf("welcome %v, want %d", w, c.want)
			}
		})
	}
	t.Run("continues with changes", func(t *testing.T) {
		r := snapshot(t)
		s := r.Open()
		res := must(t, s, hello("e1", 7, 0, kNode, kService), heartbeat(7),
			changes(remove(6, kNode, "n1"), upsert(7, kService, "s", "b")))
		changed(t, res, "-n1 ~s")
	})
	t.Run("sender may still send a snapshot", func(t *testing.T) {
		r := snapshot(t)
		res := must(t, r.Open(), hello("e1", 7, 0, kNode, kService), begin(kNode, 7), end(kNode, 7, 0))
		changed(t, res, "-n1")
	})
	t.Run("a kind that lagged catches up and the others do not go back", func(t *testing.T) {
		r := snapshot(t)
		s := r.Open()
		must(t, s, hello("e1", 8, 0, kNode), changes(upsert(8, kNode, "n1", "newer")))
		s.Close()
		s = r.Open()
		if w := welcomeOf(t, must(t, s, hello("e1", 9, 0, kNode, kService))); w.ResumeRevision != 5 {
			t.Fatalf("welcome %v", w)
		}
		res := must(t, s, changes(upsert(7, kService, "s", "b"), upsert(8, kNode, "n1", "newer"),
			upsert(9, kService, "t", "a")))
		changed(t, res, "~s +t")
	})
}

func TestRefusals(t *testing.T) {
	r := newReplica()
	s := r.Open()
	res := must(t, s, hello("e1", 3, 0, kNode), begin(kNode, 3),
		changes(upsert(1, kNode, "n1", "a"), upsert(2, kNode, "bad1", "a"), upsert(3, kNode, "half1", "a")))
	if len(res.Responses) != 2 || res.Responses[0].GetRefusal().GetCode() != "Malformed" ||
		res.Responses[0].GetRefusal().GetKey().GetName() != "bad1" || res.Responses[0].GetRefusal().GetRevision() != 2 {
		t.Fatalf("responses %v", res.Responses)
	}
	if _, refused := r.Count(kNode); refused != 0 {
		t.Errorf("%d refused before the end mark", refused)
	}
	// A refused object counts among the objects of the snapshot: the sender did send it.
	must(t, s, end(kNode, 3, 3))
	if n, refused := r.Count(kNode); n != 2 || refused != 2 {
		t.Errorf("%d held, %d refused", n, refused)
	}
	if all := r.Refused(); len(all) != 2 || all[0].Key.Name != "bad1" || all[1].Key.Name != "half1" ||
		!all[0].At.Equal(now) {
		t.Errorf("refused %v", all)
	}
	must(t, s, changes(upsert(4, kNode, "half1", "a"), remove(5, kNode, "bad1")))
	if n, refused := r.Count(kNode); n != 2 || refused != 1 {
		t.Errorf("%d held, %d refused", n, refused)
	}
}

func TestOrder(t *testing.T) {
	h := hello("e1", 5, 0, kNode, kService)
	toLive := []*semaphorev1.PublishRequest{hello("e1", 5, 0, kNode), begin(kNode, 5), end(kNode, 5, 0)}
	with := func(head []*semaphorev1.PublishRequest, tail ...*semaphorev1.PublishRequest) []*semaphorev1.PublishRequest {
		return append(append([]*semaphorev1.PublishRequest{}, head...), tail...)
	}
	hello2 := func(f func(*semaphorev1.Hello)) *semaphorev1.PublishRequest {
		m := hello("e1", 5, 0, kNode)
		f(m.GetHello())
		return m
	}
	type list = []*semaphorev1.PublishRequest
	for _, c := range []struct {
		name string
		in   list // all but the last are in order
		code codes.Code
	}{
		{"changes first", list{changes(upsert(1, kNode, "a", ""))}, codes.InvalidArgument},
		{"snapshot first", list{begin(kNode, 1)}, codes.InvalidArgument},
		{"heartbeat first", list{heartbeat(1)}, codes.InvalidArgument},
		{"end first", list{end(kNode, 1, 0)}, codes.InvalidArgument},
		{"hello twice", list{h, h}, codes.InvalidArgument},
		{"another cluster", list{hello2(func(h *semaphorev1.Hello) { h.Cluster = "c3" })}, codes.PermissionDenied},
		{"no epoch", list{hello("", 5, 0, kNode)}, codes.InvalidArgument},
		{"head before oldest", list{hello("e1", 5, 6, kNode)}, codes.InvalidArgument},
		{"kind twice", list{hello("e1", 5, 0, kNode, kNode)}, codes.InvalidArgument},
		{"no kind", list{hello("e1", 5, 0, 0)}, codes.InvalidArgument},
		{"changes before snapshots", list{h, changes(upsert(6, kNode, "a", ""))}, codes.InvalidArgument},
		{"changes between snapshots", list{h, begin(kNode, 5), end(kNode, 5, 0), changes(upsert(6, kNode, "a", ""))},
			codes.InvalidArgument},
		{"snapshot of what is not exported", list{h, begin(kMember, 5)}, codes.InvalidArgument},
		{"snapshot within another", list{h, begin(kNode, 5), begin(kService, 5)}, codes.InvalidArgument},
		{"snapshot twice", list{h, begin(kNode, 5), end(kNode, 5, 0), begin(kNode, 5)}, codes.InvalidArgument},
		{"snapshot when live", with(toLive, begin(kNode, 6)), codes.InvalidArgument},
		{"snapshots of two moments", list{h, begin(kNode, 5), end(kNode, 5, 0), begin(kService, 6)}, codes.InvalidArgument},
		{"end of another kind", list{h, begin(kNode, 5), end(kService, 5, 0)}, codes.InvalidArgument},
		{"count too high", list{h, begin(kNode, 5), changes(upsert(1, kNode, "a", "")), end(kNode, 5, 2)},
			codes.InvalidArgument},
		{"count too low", list{h, begin(kNode, 5), changes(upsert(1, kNode, "a", "")), end(kNode, 5, 0)},
			codes.InvalidArgument},
		{"delete in a snapshot", list{h, begin(kNode, 5), changes(remove(1, kNode, "a"))}, codes.InvalidArgument},
		{"another kind in a snapshot", list{h, begin(kNode, 5), changes(upsert(1, kService, "a", ""))},
			codes.InvalidArgument},
		{"object twice in a snapshot",
			list{h, begin(kNode, 5), changes(upsert(1, kNode, "a", ""), upsert(2, kNode, "a", ""))}, codes.InvalidArgument},
		{"refused object twice in a snapshot",
			list{h, begin(kNode, 5), changes(upsert(1, kNode, "bad", ""), upsert(2, kNode, "bad", ""))}, codes.InvalidArgument},
		{"snapshot goes back", list{h, begin(kNode, 5), changes(upsert(2, kNode, "a", "")),
			changes(upsert(1, kNode, "b", ""))}, codes.InvalidArgument},
		{"snapshot beyond its moment", list{h, begin(kNode, 5), changes(upsert(6, kNode, "a", ""))}, codes.InvalidArgument},
		{"change of what is not exported", with(toLive, changes(upsert(6, kService, "a", ""))), codes.InvalidArgument},
		{"unchanged first", list{unchanged(kNode, 5, 0, streams.Digest{})}, codes.InvalidArgument},
		{"unchanged, of what was never whole", list{h, unchanged(kNode, 5, 0, streams.Digest{})}, codes.InvalidArgument},
		{"unchanged when live", with(toLive, unchanged(kNode, 5, 0, streams.Digest{})), codes.InvalidArgument},
		{"sent more than there is", with(toLive, sent(7, 8)), codes.InvalidArgument},
		{"empty change", with(toLive, changes(&semaphorev1.Change{Revision: 6})), codes.InvalidArgument},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newReplica()
			s := r.Open()
			must(t, s, c.in[:len(c.in)-1]...)
			n, _ := r.Count(kNode)
			_, err := s.Receive(now, c.in[len(c.in)-1])
			if status.Code(err) != c.code {
				t.Fatalf("error %v, want %v", err, c.code)
			}
			if m, _ := r.Count(kNode); m != n {
				t.Errorf("%d nodes held after the error, %d before", m, n)
			}
		})
	}
}

func TestHeartbeatsAreAnswered(t *testing.T) {
	acked := func(r Result) uint64 {
		t.Helper()
		if len(r.Responses) != 1 || r.Responses[0].GetAck() == nil {
			t.Fatalf("a heartbeat is answered by %v", r.Responses)
		}
		return r.Responses[0].GetAck().GetRevision()
	}
	r := newReplica()
	s := r.Open()
	must(t, s, hello("e1", 3, 0, kMember))
	if result := must(t, s, heartbeat(3)); len(result.Responses) != 0 {
		t.Errorf("a heartbeat before the snapshot is answered by %v: nothing is held that an Ack could speak of",
			result.Responses)
	}
	must(t, s, begin(kMember, 3), changes(upsert(2, kMember, "a", "1")), end(kMember, 3, 1))
	if n := acked(must(t, s, heartbeat(5))); n != 3 {
		t.Errorf("after a snapshot of 3 a heartbeat is answered by %d", n)
	}
	must(t, s, changes(upsert(6, kMember, "b", "1")))
	if n := acked(must(t, s, heartbeat(7))); n != 6 {
		t.Errorf("after change 6 a heartbeat is answered by %d", n)
	}
	s = r.Open()
	must(t, s, hello("e1", 7, 0, kMember))
	if n := acked(must(t, s, heartbeat(7))); n != 6 {
		t.Errorf("with nothing to send since 6 a heartbeat is answered by %d", n)
	}
}

// The digest is of what was sent: what was refused belongs to it, what was refused in part belongs to it whole.
func TestUnchangedSnapshotIsSkipped(t *testing.T) {
	r := newReplica()
	received := []*semaphorev1.Change{upsert(1, kNode, "n1", "a"), upsert(2, kNode, "bad1", "a"),
		upsert(3, kNode, "half1", "a")}
	s := r.Open()
	if w := welcomeOf(t, must(t, s, hello("e1", 3, 0, kNode))); len(w.Held) != 0 {
		t.Errorf("an empty replica holds %v", w.Held)
	}
	must(t, s, begin(kNode, 3), changes(received...), end(kNode, 3, 3))
	must(t, s, changes(upsert(4, kNode, "n2", "a"), upsert(5, kNode, "bad2", "a"), upsert(6, kNode, "bad1", "b"),
		remove(7, kNode, "n2"), remove(8, kNode, "bad2"), upsert(9, kNode, "bad1", "a")))
	s.Close()

	s = r.Open()
	w := welcomeOf(t, must(t, s, hello("e2", 3, 0, kNode, kService)))
	sum := digestOf(received)
	if len(w.Held) != 1 || w.Held[0].Kind != kNode || w.Held[0].Objects != 3 ||
		string(w.Held[0].Digest) != string(sum.Bytes()) {
		t.Fatalf("held %v, want 3 nodes with %x", w.Held, sum)
	}
	for name, m := range map[string]*semaphorev1.PublishRequest{
		"another count":  unchanged(kNode, 3, 2, sum),
		"another digest": unchanged(kNode, 3, 3, digestOf(received[:2])),
		"no digest": {Message: &semaphorev1.PublishRequest_SnapshotUnchanged{
			SnapshotUnchanged: &semaphorev1.SnapshotUnchanged{Kind: kNode, Revision: 3, Objects: 3}}},
	} {
		liar := r.Open()
		must(t, liar, hello("e2", 3, 0, kNode, kService))
		if _, err := liar.Receive(now, m); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	s = r.Open()
	must(t, s, hello("e2", 3, 0, kNode, kService))
	res := must(t, s, unchanged(kNode, 3, 3, sum))
	if len(res.Changes) != 0 || len(res.Refused) != 0 || res.Completed != kNode || !res.Unchanged || res.Taken != 2 {
		t.Errorf("result %+v", res)
	}
	if _, acked := ackOf(res); acked {
		t.Error("acknowledged before the snapshot of services")
	}
	if rev, _ := ackOf(must(t, s, begin(kService, 3), end(kService, 3, 0))); rev != 3 {
		t.Errorf("ack %d", rev)
	}
	s.Close()
	if w := welcomeOf(t, must(t, r.Open(), hello("e2", 3, 0, kNode))); w.ResumeRevision != 3 {
		t.Errorf("welcome %v: the new epoch's revision was not taken over", w)
	}
}

func TestSources(t *testing.T) {
	as := func(source string, m *semaphorev1.PublishRequest) *semaphorev1.PublishRequest {
		m.GetHello().SourceId = source
		return m
	}
	ended := func(kind semaphorev1.Kind, revision, source uint64) *semaphorev1.PublishRequest {
		m := end(kind, revision, 0)
		m.GetSnapshotEnd().SourceRevision = source
		return m
	}
	read := func(kind semaphorev1.Kind, source uint64) *semaphorev1.PublishRequest {
		m := sent(3, 3)
		m.GetHeartbeat().Sources = []*semaphorev1.SourceRevision{{Kind: kind, SourceRevision: source}}
		return m
	}
	r := newReplica()
	held := func(source string) string {
		s := r.Open()
		defer s.Close()
		w := welcomeOf(t, must(t, s, as(source, hello("e9", 3, 0, kNode, kService))))
		var parts []string
		for _, k := range w.Held {
			parts = append(parts, fmt.Sprint(semaphorev1.KindName(k.Kind), " ", k.SourceId, " ", k.SourceRevision))
		}
		return strings.Join(parts, ", ")
	}
	s := r.Open()
	must(t, s, as("uid1", hello("e1", 3, 0, kNode, kService)), begin(kNode, 3), ended(kNode, 3, 100), read(kNode, 200))
	if got := held("uid1"); got != "node uid1 100" {
		t.Errorf("before the snapshots are over: %s", got)
	}
	s = r.Open()
	must(t, s, as("uid1", hello("e1", 3, 0, kNode, kService)), begin(kNode, 3), ended(kNode, 3, 100), begin(kService, 3),
		ended(kService, 3, 101),
		read(kNode, 150), read(kNode, 120), read(kMember, 7))
	if got := held("uid1"); got != "node uid1 150, service uid1 101" {
		t.Errorf("after heartbeats: %s", got)
	}
	s = r.Open()
	must(t, s, as("uid2", hello("e2", 3, 0, kNode)), begin(kNode, 3), ended(kNode, 3, 7))
	if got := held("uid2"); got != "node uid2 7, service uid1 101" {
		t.Errorf("after another source: %s", got)
	}
}

// F24: of two that take themselves for the leader, the one that has been deposed is not heard.
func TestDeposedExporterIsRefused(t *testing.T) {
	as := func(term uint64) *semaphorev1.PublishRequest {
		m := hello("e1", 3, 0, kNode)
		m.GetHello().Term = term
		return m
	}
	r := newReplica()
	leader := r.Open()
	must(t, leader, as(7))
	if _, err := r.Open().Receive(now, as(6)); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("an older term: %v", err)
	}
	if !leader.Current() {
		t.Fatal("the deposed exporter took over")
	}
	same := r.Open()
	must(t, same, as(7))
	if !same.Current() || leader.Current() {
		t.Error("of one term the newest hello is heard")
	}
	without := r.Open()
	must(t, without, as(0))
	if !without.Current() {
		t.Error("an exporter without leader election is refused")
	}
	next := r.Open()
	must(t, next, as(8))
	next.Close()
	after := r.Open()
	must(t, after, as(2))
	if !after.Current() {
		t.Error("a leader that is gone keeps a new one out")
	}
}

// A sender that exports no kind has nothing to send before its changes.
func TestNoKinds(t *testing.T) {
	r := newReplica()
	s := r.Open()
	testkit.Value(s.Receive(time.Unix(1, 0), hello("e1", 5, 0)))(t)
	if !s.Live() {
		t.Error("snapshots are awaited of a sender without kinds")
	}
}
