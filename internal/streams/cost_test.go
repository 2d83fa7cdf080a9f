package streams

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// perByte is the largest allocation of decoding for a byte on the wire, and perMessage the allowed allocation in
// addition: two bytes can stand for an empty message, of which the largest has some 200 bytes and a place in a slice
// that grows.
const (
	perByte    = 200
	perMessage = 64 << 10
)

// decoders are the messages that broker, exporter and agent decode from a peer, with their limit of memory once
// decoded.
var decoders = []struct {
	name string
	new  func() proto.Message
	most int
}{
	{"broker, of an exporter", func() proto.Message { return &semaphorev1.PublishRequest{} }, 12 << 20},
	{"broker, of an agent", func() proto.Message { return &semaphorev1.AttachRequest{} }, 4 << 20},
	{"broker, of an operator", func() proto.Message { return &semaphorev1.DrainRequest{} }, 4 << 20},
	{"exporter, of a broker", func() proto.Message { return &semaphorev1.PublishResponse{} }, 1 << 30},
	{"agent, of its broker", func() proto.Message { return &semaphorev1.AttachResponse{} }, 1 << 30},
}

// nested returns as many empty messages as fit into n bytes, at the place in a message to which a path of fields leads.
func nested(n int, path ...protowire.Number) []byte {
	last := protowire.AppendBytes(protowire.AppendTag(nil, path[len(path)-1], protowire.BytesType), nil)
	data := bytes.Repeat(last, n/len(last))
	for i := len(path) - 2; i >= 0; i-- {
		data = protowire.AppendBytes(protowire.AppendTag(nil, path[i], protowire.BytesType), data)
	}
	return data
}

// paths returns the paths from a message to each repeated field of the messages in it.
func paths(d protoreflect.MessageDescriptor, depth int) [][]protowire.Number {
	var all [][]protowire.Number
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if f.Message() == nil || f.IsMap() || depth == 0 {
			continue
		}
		if f.IsList() {
			all = append(all, []protowire.Number{f.Number()})
		}
		for _, path := range paths(f.Message(), depth-1) {
			all = append(all, append([]protowire.Number{f.Number()}, path...))
		}
	}
	return all
}

// cost decodes data with each of the decoders, and compares the allocations with the bounds.
func cost(t *testing.T, data []byte) (worst float64) {
	for _, d := range decoders {
		if _, err := MemoryOf(data, d.new().ProtoReflect().Type(), d.most); err != nil {
			continue // it is no valid message
		}
		m := d.new()
		took := allocated(data, m)
		if most := perByte*len(data) + perMessage; took > most {
			t.Errorf("%s: %d bytes on the wire allocate %d, and %d is the most: %x", d.name, len(data), took, most,
				data[:min(len(data), 100)])
		}
		if proto.Size(m) > 0 {
			worst = max(worst, float64(took)/float64(len(data)))
		}
		into := d.new()
		if took > 2*d.most+perMessage && Decode(data, into, d.most) == nil {
			t.Errorf("%s: decodes what takes %d bytes of memory, over its limit of %d", d.name, took, d.most)
		}
	}
	return worst
}

// FuzzCost: whatever the bytes are, decoding them allocates at most perByte for each, in the broker, exporter and
// agent. A short message is repeated, which is a valid message again, so that its allocations exceed perMessage.
func FuzzCost(f *testing.F) {
	const few, many = 512, 8 << 10
	for _, d := range decoders {
		for _, path := range paths(d.new().ProtoReflect().Descriptor(), 4) {
			f.Add(nested(64, path...))
		}
	}
	f.Add(changes(1))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 {
			return
		}
		if len(data) <= few {
			data = bytes.Repeat(data, 1+many/len(data))
		}
		cost(t, data)
	})
}

// TestCost is FuzzCost with the worst known input: empty messages wherever a message has a list of them.
func TestCost(t *testing.T) {
	worst, of := 0.0, ""
	for _, d := range decoders {
		all := paths(d.new().ProtoReflect().Descriptor(), 4)
		if len(all) == 0 && d.name != "broker, of an operator" {
			t.Errorf("%s: no list of messages is found", d.name)
		}
		for _, path := range all {
			data := nested(256<<10, path...)
			allocated(data, d.new()) // the first use of a type allocates more
			if n := cost(t, data); n > worst {
				worst, of = n, d.name
			}
		}
	}
	t.Logf("the worst is %.0f bytes for a byte on the wire: %s", worst, of)
	if worst < perByte/4 {
		t.Errorf("the worst is %.0f bytes for a byte, so that a bound of %d says little", worst, perByte)
	}
}
