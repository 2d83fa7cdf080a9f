package publish

import (
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// The tests of this file are the exporter's half of F38: brokers of the version before and of the one after.

// later is m as a later version would send it, after it was encoded and decoded: with a field that this one does not
// know.
func later(t *testing.T, m *semaphorev1.PublishResponse) *semaphorev1.PublishResponse {
	t.Helper()
	unknown := protowire.AppendString(protowire.AppendTag(nil, 1000, protowire.BytesType), "of a later version")
	m.ProtoReflect().SetUnknown(unknown)
	if w := m.GetWelcome(); w != nil {
		w.ProtoReflect().SetUnknown(unknown)
	}
	data, err := proto.Marshal(m)
	must(t, err)
	out := &semaphorev1.PublishResponse{}
	must(t, proto.Unmarshal(data, out))
	return out
}

func welcome(w *semaphorev1.Welcome) *semaphorev1.PublishResponse {
	return &semaphorev1.PublishResponse{Message: &semaphorev1.PublishResponse_Welcome{Welcome: w}}
}

// hi is the welcome of c2's broker, which holds this.
func hi(held ...*semaphorev1.KindState) *semaphorev1.PublishResponse {
	return welcome(&semaphorev1.Welcome{Cluster: "c2", ProtocolVersion: 1, Held: held})
}

func ack(revision uint64) *semaphorev1.PublishResponse {
	m := &semaphorev1.Ack{Revision: revision}
	return &semaphorev1.PublishResponse{Message: &semaphorev1.PublishResponse_Ack{Ack: m}}
}

func refused(r *semaphorev1.Refusal) *semaphorev1.PublishResponse {
	return &semaphorev1.PublishResponse{Message: &semaphorev1.PublishResponse_Refusal{Refusal: r}}
}

func reported(o *semaphorev1.Outcome) *semaphorev1.PublishResponse {
	return &semaphorev1.PublishResponse{Message: &semaphorev1.PublishResponse_Outcome{Outcome: o}}
}

// versionSession is a session over two objects, whose hello was sent.
func versionSession() *Session {
	j := newJournal(10)
	for _, name := range []string{"a", "b"} {
		key, object := member(name, "10.1.0.1")
		put(j, key, object, time.Now())
	}
	s := NewSession("c1", "c2", "test", 3, source{id: "source"}, kinds, j)
	s.Hello()
	return s
}

// sent is all that a session has to send now, by the types of the messages.
func sent(t *testing.T, s *Session) (types []string, objects int) {
	t.Helper()
	for {
		m, err := s.Next()
		must(t, err)
		if m == nil {
			return types, objects
		}
		types = append(types, string(m.ProtoReflect().WhichOneof(m.ProtoReflect().Descriptor().Oneofs().Get(0)).Name()))
		objects += len(m.GetChanges().GetChanges())
	}
}

// A broker of the next version says things that nobody here knows; what is known of them is followed.
func TestF38NewerBroker(t *testing.T) {
	s := versionSession()
	_, err := s.Receive(later(t, hi(
		&semaphorev1.KindState{Kind: 9, Objects: 5, Digest: make([]byte, 32)}, // a kind that does not exist here
		// a digest of another sort
		&semaphorev1.KindState{Kind: semaphorev1.Kind_KIND_SET_MEMBER, Objects: 2, Digest: make([]byte, 64)})))
	must(t, err)
	_, err = s.Receive(later(t, &semaphorev1.PublishResponse{}))
	must(t, err)
	if types, objects := sent(t, s); objects != 2 {
		t.Errorf("%d objects sent in %v", objects, types)
	}
	_, err = s.Receive(later(t, refused(&semaphorev1.Refusal{Key: &semaphorev1.ObjectKey{Kind: 9, Name: "x"},
		Code: "of-a-later-version"})))
	must(t, err)
	if _, err := s.Receive(later(t, ack(2))); err != nil || s.acked != 2 {
		t.Errorf("acknowledged is %d: %v", s.acked, err)
	}
}

// A broker that speaks no version of ours, whatever it says, ends the stream with both ranges.
func TestF38NoVersionInCommon(t *testing.T) {
	for _, version := range []uint32{0, protocolVersion + 1} {
		s := versionSession()
		if _, err := s.Receive(welcome(&semaphorev1.Welcome{Cluster: "c2", ProtocolVersion: version})); err == nil {
			t.Errorf("version %d was accepted", version)
		}
		if types, _ := sent(t, s); len(types) > 0 {
			t.Errorf("version %d is sent %v", version, types)
		}
	}
}
