package streams

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// allocated returns the number of bytes that decoding data allocates.
func allocated(data []byte, m proto.Message) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := proto.Unmarshal(data, m)
	runtime.ReadMemStats(&after)
	if err != nil {
		return 0
	}
	return int(after.TotalAlloc - before.TotalAlloc)
}

func changes(n int) []byte {
	all := &semaphorev1.Changes{}
	for i := range n {
		all.Changes = append(all.Changes,
			&semaphorev1.Change{Revision: uint64(i + 1), Change: &semaphorev1.Change_Upsert{Upsert: &semaphorev1.Object{
				Key: &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_ENDPOINT_SLICE, Namespace: "shop",
					Name: fmt.Sprint("web-", i)},
				Spec: &semaphorev1.Object_EndpointSlice{EndpointSlice: &semaphorev1.EndpointSlice{
					Service: "web", AddressType: "IPv4", Ports: []*semaphorev1.Port{{Name: "http", Protocol: "TCP", Port: 80}},
					Endpoints: []*semaphorev1.Endpoint{{Addresses: []string{"10.2.0.1"}, Ready: proto.Bool(true),
						Serving: proto.Bool(true)}},
				}},
			}}})
	}
	data, err := proto.Marshal(&semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_Changes{Changes: all}})
	if err != nil {
		panic(err)
	}
	return data
}

// FuzzSize: decoding allocates no more memory than MemoryOf returns, whatever the bytes are.
func FuzzSize(f *testing.F) {
	f.Add(changes(100))
	f.Add([]byte("\x1a\x06\x0a\x00\x0a\x00\x0a\x00"))
	f.Add([]byte("\x0a\x06\x42\x04\x01\x02\x03\x04"))
	f.Add([]byte("\x0a\x04\x3a\x02ab"))
	f.Fuzz(func(t *testing.T, data []byte) {
		of := (&semaphorev1.PublishRequest{}).ProtoReflect().Type()
		n, err := MemoryOf(data, of, 1<<30)
		took := allocated(data, &semaphorev1.PublishRequest{})
		// The margin is for the runtime, and for the first use of a type.
		if err == nil && took > 2*n+64<<10 {
			t.Fatalf("%d bytes took %d bytes of memory, and were said to take %d: %x", len(data), took, n,
				data[:min(len(data), 200)])
		}
		if err != nil && proto.Unmarshal(data, &semaphorev1.PublishRequest{}) == nil {
			t.Fatalf("%x is a message, and was taken for none: %v", data, err)
		}
	})
}

// TestSize: MemoryOf is an upper bound of the memory for decoding a message, and not far above it for an ordinary one.
func TestSize(t *testing.T) {
	of := (&semaphorev1.PublishRequest{}).ProtoReflect().Type()
	for name, data := range map[string][]byte{
		"honest":        changes(10_000),
		"empty changes": append([]byte{0x1a, 0x80, 0x80, 0x40}, strings.Repeat("\x0a\x00", 512<<10)...),
	} {
		allocated(data, &semaphorev1.PublishRequest{}) // the first use of a type allocates more
		n, err := MemoryOf(data, of, 1<<30)
		took := allocated(data, &semaphorev1.PublishRequest{})
		t.Logf("%s: %d bytes take %d, said were %d", name, len(data), took, n)
		if err != nil || n < took*8/10 || n > 4*took {
			t.Errorf("%s: %d bytes take %d, said were %d, %v", name, len(data), took, n, err)
		}
	}
	if n, _ := MemoryOf(changes(10_000), of, 1000); n <= 1000 || n > 10_000 {
		t.Errorf("over 1000 it continues to %d", n)
	}
}

func TestCodec(t *testing.T) {
	data := changes(1000)
	of := func() mem.BufferSlice { return mem.BufferSlice{mem.SliceBuffer(data)} }
	var m semaphorev1.PublishRequest
	if err := (Codec{1 << 10}).Unmarshal(of(), &m); status.Code(err) != codes.ResourceExhausted ||
		len(m.GetChanges().GetChanges()) != 0 {
		t.Errorf("over the limit: %v", err)
	}
	if err := (Codec{16 << 20}).Unmarshal(of(), &m); err != nil || len(m.GetChanges().GetChanges()) != 1000 {
		t.Errorf("within the limit: %v", err)
	}
	var raw Raw
	if err := (Codec{1 << 10}).Unmarshal(of(), &raw); err != nil || len(raw) != len(data) {
		t.Errorf("raw: %v, %d bytes", err, len(raw))
	}
	if err := (Codec{1 << 10}).Unmarshal(mem.BufferSlice{mem.SliceBuffer("\x0a")},
		&m); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no message: %v", err)
	}
}

// TestSizeOfAOneof: a field of a oneof, or an optional scalar, takes one more pointer; other numbers do not.
func TestSizeOfAOneof(t *testing.T) {
	for name, test := range map[string]struct {
		m    proto.Message
		more int
	}{
		"a number":            {&semaphorev1.KindState{Objects: 1}, perScalar},
		"an optional boolean": {&semaphorev1.Endpoint{Ready: proto.Bool(true)}, perScalar + perOneof},
		"packed numbers":      {&semaphorev1.Hello{Kinds: make([]semaphorev1.Kind, 100)}, (1 + 100) * perScalar},
	} {
		data := testkit.Value(proto.Marshal(test.m))(t)
		of := test.m.ProtoReflect()
		if n, err := MemoryOf(data, of.Type(), 1<<20); err != nil || n != structure(of.Descriptor())+test.more {
			t.Errorf("%s: %d, %v; want %d", name, n, err, structure(of.Descriptor())+test.more)
		}
	}
}
