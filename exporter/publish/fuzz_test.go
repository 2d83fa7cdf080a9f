package publish

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// FuzzSessionReceive has a broker say anything at all, in any order. However it does, the session does not panic, sends
// it nothing that is for others, and sends no more than there is.
func FuzzSessionReceive(f *testing.F) {
	seed := func(messages ...*semaphorev1.PublishResponse) {
		var data []byte
		for _, m := range messages {
			b, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			data = append(append(data, byte(len(b))), b...)
		}
		f.Add(data, uint64(7))
	}
	_, o := member("pod0", "10.1.1.1")
	right := streams.DigestOf(o)
	pods := semaphorev1.Kind_KIND_SET_MEMBER
	seed(hi(), ack(1), ack(3))
	seed(hi(&semaphorev1.KindState{Kind: pods, Objects: 1, Digest: right.Bytes(), SourceId: "uid", SourceRevision: 3}),
		ack(3))
	seed(hi(&semaphorev1.KindState{Kind: pods, Objects: 1 << 63, Digest: []byte{1}, SourceId: "uid",
		SourceRevision: 1 << 63}), ack(3))
	seed(hi(&semaphorev1.KindState{Kind: -1}, &semaphorev1.KindState{Kind: 99, Digest: right.Bytes()}), hi())
	seed(welcome(&semaphorev1.Welcome{Cluster: "c2", ProtocolVersion: 1, ResumeEpoch: "e", ResumeRevision: 1 << 63}),
		ack(1<<63))
	seed(refused(&semaphorev1.Refusal{}), ack(0), &semaphorev1.PublishResponse{})
	f.Fuzz(func(t *testing.T, data []byte, read uint64) {
		j := newJournal(2)
		for _, name := range []string{"pod0", "pod1", "pod2"} {
			k, o := member(name, "10.1.1.1")
			put(j, k, o, time.Unix(1, 0))
		}
		k, o := node("c3", "secret", "192.0.2.1:1")
		put(j, k, o, time.Unix(1, 0))
		k, _ = member("pod2", "")
		remove(j, k, time.Unix(2, 0))
		s := NewSession("c1", "c2", "test", 1, source{"uid", upTo(read), upTo(read)}, kinds, j)
		s.Hello()
		for len(data) > 0 {
			n := min(int(data[0]), len(data)-1)
			m := &semaphorev1.PublishResponse{}
			if proto.Unmarshal(data[1:1+n], m) != nil {
				return
			}
			data = data[1+n:]
			if _, err := s.Receive(m); err != nil {
				return
			}
			sent := 0
			for {
				m, err := s.Next()
				if err != nil {
					return
				}
				if m == nil {
					break
				}
				for _, name := range names(m) {
					if name == "node secret" {
						t.Fatal("c2 receives what is for c3")
					}
				}
				if sent++; sent > 20 {
					t.Fatal("there is no end of messages")
				}
			}
			if s.cursor > j.Head() || s.behind() < 0 {
				t.Fatalf("the session is at %d of %d, behind by %d", s.cursor, j.Head(), s.behind())
			}
			s.Heartbeat()
		}
	})
}

// TestF26LargestObjects: an object of the largest size has a message to itself, and the broker reads it (bothEnds.say).
func TestF26LargestObjects(t *testing.T) {
	j, r := newJournal(10), newReplica()
	for _, name := range []string{"a", "b", "c"} {
		k, o := member(name, "10.1.1.1")
		for catalog.MaxObject-proto.Size(o) > 300 {
			o.GetSetMember().Ips = append(o.GetSetMember().Ips, strings.Repeat("f", 100))
		}
		o.GetSetMember().PodUid = strings.Repeat("u", catalog.MaxObject-proto.Size(o)-3)
		if proto.Size(o) != catalog.MaxObject {
			t.Fatalf("%s has %d bytes, not %d", k, proto.Size(o), catalog.MaxObject)
		}
		put(j, k, o, time.Unix(1, 0))
	}
	w := connect(t, j, r)
	w.drain()
	equal(t, j, r)
	if w.sent["*semaphorev1.PublishRequest_Changes"] != 3 {
		t.Errorf("3 objects of %d bytes: sent were %v", catalog.MaxObject, w.sent)
	}
	k, o := member("d", "10.1.1.1")
	for range catalog.MaxObject / 30 {
		o.GetSetMember().Ips = append(o.GetSetMember().Ips, "2001:db8::ffff:ffff:ffff:ffff")
	}
	if _, err := catalog.NewExport(o, catalog.For("c2")); err == nil {
		t.Errorf("%s of %d bytes is exported", k, proto.Size(o))
	}
}

// TestBatchesFitTheBroker: labels of one character take 30 times their bytes at the broker, which reads each batch all
// the same (bothEnds.say), in a snapshot and later.
func TestBatchesFitTheBroker(t *testing.T) {
	j, r := newJournal(10), newReplica()
	export := func(n int) {
		for i := range n {
			k, o := member(fmt.Sprintf("%d", i), "")
			multi := &semaphorev1.MultiClusterExport{}
			for range 64 {
				multi.Labels = append(multi.Labels, &semaphorev1.Label{Key: "a"})
				multi.Annotations = append(multi.Annotations, &semaphorev1.Annotation{Key: "a"})
			}
			o.Spec = &semaphorev1.Object_Service{Service: &semaphorev1.Service{MultiCluster: multi}}
			put(j, k, o, time.Now())
		}
	}
	export(700)
	w := connect(t, j, r)
	w.drain()
	export(700)
	w.drain()
	if n := len(held(r)); n != 700 {
		t.Errorf("the broker holds %d objects of 700", n)
	}
}
