package federation

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// FuzzLook compares what look says of a message with what decoding it gives: the kind and the number of changes by
// which the broker decides whether to decode it are those of the message.
func FuzzLook(f *testing.F) {
	for _, m := range []*semaphorev1.PublishRequest{
		{},
		players.Hello("c2", "e", 0),
		players.Beat(3, 0),
		players.Changes(&semaphorev1.Change{Revision: 1}, &semaphorev1.Change{}, &semaphorev1.Change{Revision: 3}),
	} {
		data := testkit.Value(proto.Marshal(m))(f)
		f.Add(data)
		f.Add(append(data, data...))
	}
	f.Add([]byte("\x1a\x02\x0a\x00\x1a\x02\x0a\x00"))
	f.Add(append([]byte{0x1a, 0xfe, 0x0f}, bytes.Repeat([]byte{0x0a, 0x00}, 1023)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := inspect(data)
		if m.name() == "" {
			t.Fatal("a message without a name")
		}
		into := &semaphorev1.PublishRequest{}
		if proto.Unmarshal(data, into) != nil {
			return // refused then at the latest
		}
		if err != nil {
			return // refused before it is decoded, as one of several fields is, or one that is too large
		}
		changes := len(into.GetChanges().GetChanges())
		if changes != m.changes || changes > maxChanges {
			t.Fatalf("%d changes are decoded, and look sees %d", changes, m.changes)
		}
		if (into.GetHello() != nil) != (m.kind == helloField) && into.GetMessage() != nil {
			t.Fatalf("decoded is %T, and look sees %s", into.GetMessage(), m.name())
		}
	})
}
