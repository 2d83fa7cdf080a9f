package replica

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// The tests of this file are the broker's half of F38: exporters of the version before and of the one after.

// later is m as a later version would send it: with a field that this one does not know.
func later[M proto.Message](m M) M {
	raw := protowire.AppendTag(nil, 1000, protowire.BytesType)
	m.ProtoReflect().SetUnknown(protowire.AppendString(raw, "of a later version"))
	return m
}

// laterMessage is one of a later version, of which this one knows nothing.
func laterMessage() *semaphorev1.PublishRequest { return later(&semaphorev1.PublishRequest{}) }

// crossed is m after it was encoded and decoded.
func crossed(t *testing.T, m *semaphorev1.PublishRequest) *semaphorev1.PublishRequest {
	t.Helper()
	data := testkit.Value(proto.Marshal(m))(t)
	out := &semaphorev1.PublishRequest{}
	testkit.Must(t, proto.Unmarshal(data, out))
	return out
}

// An exporter from before terms, sources, digests and sent_revision: its streams resume and take over as they did.
func TestF38OlderExporter(t *testing.T) {
	r := newReplica()
	s := r.Open()
	must(t, s, hello("e1", 2, 0, kNode, kService), begin(kNode, 2), changes(upsert(1, kNode, "n1", "a")), end(kNode, 2, 1),
		begin(kService, 2), changes(upsert(2, kService, "s", "a")), end(kService, 2, 1))
	if rev, ok := ackOf(must(t, s, heartbeat(7))); !ok || rev != 2 {
		t.Errorf("a heartbeat without sent_revision is answered with %d %v", rev, ok)
	}
	if rev, _ := ackOf(must(t, s, changes(upsert(9, kNode, "n1", "b")))); rev != 9 {
		t.Errorf("ack %d", rev)
	}
	// It has no term: it is neither deposed by one that has, nor does it depose.
	newer := hello("e2", 3, 0, kNode, kService)
	newer.GetHello().Term = 5
	must(t, r.Open(), newer)
	w := welcomeOf(t, must(t, r.Open(), hello("e1", 9, 0, kNode, kService)))
	if w.ResumeEpoch != "e1" || w.ResumeRevision != 9 {
		t.Errorf("welcome %v", w)
	}
	// An unknown field of the welcome is for others and does not hurt it.
	if len(w.Held) != 2 || w.Held[0].SourceId != "" || w.Held[0].SourceRevision != 0 {
		t.Errorf("held %v", w.Held)
	}
}

// An exporter of the next version: unknown fields everywhere, unknown messages between the known ones, a kind that does
// not exist here, and a range of versions that ends above ours.
func TestF38NewerExporter(t *testing.T) {
	const kNew = semaphorev1.Kind(9)
	r := New("c2", "c1", "test", admission.New(&config.Remote{Name: "c2"}, nil).Check)
	h := hello("e1", 5, 0, kNode, kService, kNew)
	h.GetHello().ProtocolVersion = 7
	later(h.GetHello())
	known := upsert(1, kService, "s", "a")
	known.GetUpsert().GetService().Ports = []*semaphorev1.Port{later(&semaphorev1.Port{Name: "http", Protocol: "TCP",
		Port: 80})}
	later(known.GetUpsert().GetService())
	unknownObject := later(&semaphorev1.Object{Key: &semaphorev1.ObjectKey{Kind: kNew, Namespace: "ns", Name: "x"}})
	unknown := &semaphorev1.Change{Revision: 2, Change: &semaphorev1.Change_Upsert{Upsert: unknownObject}}

	s := r.Open()
	steps := []*semaphorev1.PublishRequest{
		h, laterMessage(),
		begin(kService, 5), later(changes(known)), laterMessage(), later(end(kService, 5, 1)),
		begin(kNew, 5), changes(unknown), end(kNew, 5, 1),
		begin(kNode, 5), end(kNode, 5, 0),
		later(heartbeat(5)), laterMessage(),
	}
	refused := 0
	for i, m := range steps {
		res, err := s.Receive(now, crossed(t, m))
		if err != nil {
			t.Fatalf("message %d, %v: %v", i, m, err)
		}
		if i == 0 {
			if w := welcomeOf(t, res); w.ProtocolVersion != protocolVersion {
				t.Errorf("version %d was agreed on; ours is %d", w.ProtocolVersion, protocolVersion)
			}
		}
		for _, f := range res.Refused {
			refused++
			if f.Key.Kind != kNew || f.Code != finding.UnknownKind {
				t.Errorf("refused %v", f)
			}
		}
	}
	if n, _ := r.Count(kService); n != 1 || !r.Complete(kService) || !r.Complete(kNode) || refused != 1 || !s.Current() {
		t.Errorf("%d services, complete %v; %d refused", n, r.Complete(kService), refused)
	}

	// Its digest of what it sent is the same here, though a field of it is unknown here.
	received := streams.DigestOf(known.GetUpsert())
	again := r.Open()
	w := welcomeOf(t, must(t, again, hello("e2", 8, 0, kService)))
	if len(w.Held) != 1 || string(w.Held[0].Digest) != string(received.Bytes()) {
		t.Fatalf("held %v; want the digest %x", w.Held, received)
	}
	if res := must(t, again, unchanged(kService, 8, 1, received)); len(res.Changes) != 0 || !res.Unchanged {
		t.Errorf("result %+v", res)
	}
}

// A message that cannot be ignored ends the stream with a reason, and removes no held object.
func TestF38RequiredUnknownsEndTheStream(t *testing.T) {
	tooNew := hello("e1", 1, 0, kNode)
	tooNew.GetHello().ProtocolVersion, tooNew.GetHello().MinProtocolVersion = 3, 2
	tooOld := hello("e1", 1, 0, kNode)
	tooOld.GetHello().ProtocolVersion, tooOld.GetHello().MinProtocolVersion = 0, 0
	whole := []*semaphorev1.PublishRequest{hello("e1", 1, 0, kNode), begin(kNode, 1), changes(upsert(1, kNode, "n1", "a")),
		end(kNode, 1, 1)}
	for name, test := range map[string]struct {
		messages []*semaphorev1.PublishRequest
		code     codes.Code
	}{
		"no version in common, newer": {[]*semaphorev1.PublishRequest{tooNew}, codes.FailedPrecondition},
		"no version in common, older": {[]*semaphorev1.PublishRequest{tooOld}, codes.FailedPrecondition},
		"a message without content":   {append(whole, &semaphorev1.PublishRequest{}), codes.InvalidArgument},
		"a change of a new sort": {append(whole, changes(later(&semaphorev1.Change{Revision: 2}))),
			codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReplica()
			must(t, r.Open(), whole...)
			s := r.Open()
			var err error
			for _, m := range test.messages {
				if _, err = s.Receive(now, crossed(t, m)); err != nil {
					break
				}
			}
			if status.Code(err) != test.code {
				t.Errorf("%v; want %s", err, test.code)
			}
			if n, _ := r.Count(kNode); n != 1 || !r.Complete(kNode) {
				t.Errorf("%d nodes are left", n)
			}
		})
	}
}
