// Package streams has what all streams between parts share, whatever their protocol: the Journal of the sent objects,
// the digests by which both ends compare the held objects, the connection that is kept (Keep), and the bound on the
// memory of a protobuf message, which is known from its bytes before it is decoded (Decode).
//
// A limit of bytes on the wire does not bound that: 2 bytes for an empty message become a structure of a hundred. The
// package knows the types of messages by their descriptors only.
package streams

import (
	"fmt"
	"reflect"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// The memory of decoding beside a message's own structure. A slice that grows by appending has at most twice the room.
const (
	perPointer = 2 * 8  // an element of a repeated message
	perText    = 2 * 24 // a string or bytes in a slice, beside its content
	perScalar  = 2 * 8  // a number in a slice
	perOneof   = 16     // the wrapper of a oneof's set field, or an optional scalar
	allocation = 16     // the allocator's rounding
)

// MemoryOf estimates the memory of a decoded message of a type, in bytes; it is a lower bound but for the allocator's
// size classes. It stops, with any number over most, once it is over most. It returns an error for bytes that are no
// message.
func MemoryOf(data []byte, of protoreflect.MessageType, most int) (int, error) {
	return size(data, of.Descriptor(), structure(of.Descriptor()), most)
}

func size(data []byte, d protoreflect.MessageDescriptor, n, most int) (int, error) {
	fields := d.Fields()
	for len(data) > 0 && n <= most {
		number, kind, tag := protowire.ConsumeTag(data)
		if tag < 0 {
			return n, protowire.ParseError(tag)
		}
		length := protowire.ConsumeFieldValue(number, kind, data[tag:])
		if length < 0 {
			return n, protowire.ParseError(length)
		}
		value := data[tag : tag+length]
		data = data[tag+length:]
		f := fields.ByNumber(number)
		if f == nil || !fits(f, kind) {
			n += 2 * (tag + length) // kept as it came, in a slice that grows
			continue
		}
		if f.ContainingOneof() != nil {
			n += perOneof
		}
		switch {
		case kind != protowire.BytesType:
			n += perScalar
		case f.Message() != nil:
			content, _ := protowire.ConsumeBytes(value)
			var err error
			n += perPointer + structure(f.Message())
			if n, err = size(content, f.Message(), n, most); err != nil {
				return n, err
			}
		case f.Kind() == protoreflect.StringKind || f.Kind() == protoreflect.BytesKind:
			n += perText + allocation + len(value)
		default: // packed numbers, of a byte each at least
			n += perScalar * len(value)
		}
	}
	return n, nil
}

// fits reports whether a value of a type on the wire is one of the field; otherwise it is kept as unknown.
func fits(f protoreflect.FieldDescriptor, kind protowire.Type) bool {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.StringKind, protoreflect.BytesKind:
		return kind == protowire.BytesType
	case protoreflect.GroupKind:
		return false
	}
	return kind != protowire.BytesType || f.IsList()
}

var structures sync.Map // full name of a message → bytes of its structure

// structure returns the bytes of an empty message of a type.
func structure(d protoreflect.MessageDescriptor) int {
	if n, ok := structures.Load(d.FullName()); ok {
		return n.(int)
	}
	n := 512 // a type that is not linked in, which does not occur
	if t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName()); err == nil {
		n = int(reflect.TypeOf(t.Zero().Interface()).Elem().Size()) + allocation
	}
	structures.Store(d.FullName(), n)
	return n
}

type Raw []byte

// Codec is gRPC's codec for protobuf that refuses messages of more than Most bytes once decoded, and passes a Raw its
// bytes.
type Codec struct{ Most int }

var inner = encoding.GetCodecV2(encodingproto.Name)

func (Codec) Name() string { return encodingproto.Name }

// Marshal implements encoding.CodecV2. It fails if v is no message, or cannot be encoded.
func (Codec) Marshal(v any) (mem.BufferSlice, error) { return inner.Marshal(v) }

// Unmarshal implements encoding.CodecV2. It fails if v is neither Raw nor a message, or as Decode does.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	if raw, ok := v.(*Raw); ok {
		*raw = data.Materialize()
		return nil
	}
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("decode: %T is no message", v)
	}
	return Decode(data.Materialize(), m, c.Most)
}

// Decode is proto.Unmarshal for messages of up to most bytes. It fails if data is no message, or takes more: the error
// is a gRPC status.
func Decode(data []byte, m proto.Message, most int) error {
	n, err := MemoryOf(data, m.ProtoReflect().Type(), most)
	switch {
	case err != nil:
		return status.Errorf(codes.InvalidArgument, "a message of %d bytes that is none: %v", len(data), err)
	case n > most:
		return status.Errorf(codes.ResourceExhausted, "a message of %d bytes would take more than %d bytes once decoded",
			len(data), most)
	}
	return proto.Unmarshal(data, m)
}
