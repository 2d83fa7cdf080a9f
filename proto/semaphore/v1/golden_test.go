package semaphorev1

import (
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

var update = flag.Bool("update", false, "add golden messages that are missing; those that are there stay")

const goldenFile = "testdata/golden.txt"

// filled are messages with each field set, one for each alternative of a oneof, by name.
func filled(d protoreflect.MessageDescriptor) map[string]proto.Message {
	out := map[string]proto.Message{}
	alternatives := []protoreflect.FieldDescriptor{nil}
	if d.Oneofs().Len() > 0 && !d.Oneofs().Get(0).IsSynthetic() {
		fields := d.Oneofs().Get(0).Fields()
		alternatives = nil
		for i := range fields.Len() {
			alternatives = append(alternatives, fields.Get(i))
		}
	}
	for _, chosen := range alternatives {
		m := dynamicpb.NewMessage(d)
		fill(m, chosen, 3)
		name := string(d.Name())
		if chosen != nil {
			name += "." + string(chosen.Name())
		}
		out[name] = m
	}
	return out
}

// fill sets all fields but those of oneofs, of which it sets the chosen one, or the first.
func fill(m protoreflect.Message, chosen protoreflect.FieldDescriptor, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() {
			first := o.Fields().Get(0)
			if chosen != nil && chosen.ContainingOneof() == o {
				first = chosen
			}
			if f != first {
				continue
			}
		}
		switch {
		case f.IsMap():
			value := m.NewField(f).Map()
			v := value.NewValue()
			if f.MapValue().Kind() == protoreflect.MessageKind {
				fill(v.Message(), nil, depth-1)
			} else {
				v = scalar(f.MapValue())
			}
			value.Set(scalar(f.MapKey()).MapKey(), v)
			m.Set(f, protoreflect.ValueOfMap(value))
		case f.IsList():
			list := m.NewField(f).List()
			if f.Kind() != protoreflect.MessageKind {
				list.Append(scalar(f))
			} else if depth > 0 {
				fill(list.AppendMutable().Message(), nil, depth-1)
			}
			m.Set(f, protoreflect.ValueOfList(list))
		case f.Kind() == protoreflect.MessageKind:
			if depth > 0 {
				fill(m.Mutable(f).Message(), nil, depth-1)
			}
		default:
			m.Set(f, scalar(f))
		}
	}
}

func scalar(f protoreflect.FieldDescriptor) protoreflect.Value {
	n := int64(f.Number())
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		values := f.Enum().Values()
		return protoreflect.ValueOfEnum(values.Get(min(1, values.Len()-1)).Number())
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(n)
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(uint64(n))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(n))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(n))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(f.Name()))
	default:
		return protoreflect.ValueOfString(string(f.Name()))
	}
}

// TestGoldenMessages: what an earlier version has sent means the same now, and this version sends the same bytes for
// it. Fields may be added: a message that has more than is known here is understood as far as it is known.
func TestGoldenMessages(t *testing.T) {
	types := wireMessages()
	golden := map[string][2]string{}
	data, err := os.ReadFile(goldenFile)
	if err != nil && !*update {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		words := strings.SplitN(strings.TrimSpace(line), " ", 3)
		golden[words[0]] = [2]string{words[1], words[2]}
	}
	for _, name := range slices.Sorted(maps.Keys(types)) {
		for key, m := range filled(types[name]) {
			if _, ok := golden[key]; ok {
				continue
			}
			if !*update {
				t.Errorf("no golden message %s: run this test with -update", key)
				continue
			}
			golden[key] = [2]string{hex.EncodeToString(encode(t, m)), text(t, m)}
		}
	}
	for key, want := range golden {
		name, _, _ := strings.Cut(key, ".")
		if types[name] == nil {
			t.Errorf("message %s is gone: a part one version back sends it", name)
			continue
		}
		sent, err := hex.DecodeString(want[0])
		testkit.Must(t, err)
		for what, bytes := range map[string][]byte{
			"as it was sent": sent,
			"with a field that is new": protowire.AppendString(protowire.AppendTag(slices.Clone(sent), 4000,
				protowire.BytesType), "new"),
		} {
			m := dynamicpb.NewMessage(types[name])
			if err := proto.Unmarshal(bytes, m); err != nil {
				t.Errorf("%s %s: %v", key, what, err)
				continue
			}
			if got := text(t, m); got != want[1] {
				t.Errorf("%s %s means\n%s, and meant\n%s", key, what, got, want[1])
			}
			if again := hex.EncodeToString(encode(t, m)); what == "as it was sent" && again != want[0] {
				t.Errorf("%s is sent as\n%s, and was\n%s", key, again, want[0])
			}
		}
	}
	if !*update {
		return
	}
	var out strings.Builder
	for _, key := range slices.Sorted(maps.Keys(golden)) {
		fmt.Fprintln(&out, key, golden[key][0], golden[key][1])
	}
	testkit.Must(t, os.WriteFile(goldenFile, []byte(out.String()), 0o644))
}

// wireMessages are those that cross between parts, by name.
func wireMessages() map[string]protoreflect.MessageDescriptor {
	types := map[string]protoreflect.MessageDescriptor{}
	for _, file := range []protoreflect.FileDescriptor{File_semaphore_v1_federation_proto, File_semaphore_v1_peering_proto,
		File_semaphore_v1_objects_proto} {
		for i := range file.Messages().Len() {
			types[string(file.Messages().Get(i).Name())] = file.Messages().Get(i)
		}
	}
	return types
}

func encode(t *testing.T, m proto.Message) []byte {
	t.Helper()
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	testkit.Must(t, err)
	return data
}

// text is a message in JSON, on one line. protojson adds spaces at random, so that nobody depends on it.
func text(t *testing.T, m proto.Message) string {
	t.Helper()
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	testkit.Must(t, err)
	return strings.ReplaceAll(strings.ReplaceAll(string(data), ", ", ","), ": ", ":")
}
