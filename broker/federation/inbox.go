package federation

import (
	"context"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// maxQueued is how many undecoded bytes of a stream may wait; beyond it gRPC's flow control stops the exporter.
	// minQueued is what each message counts at least.
	maxQueued = 1 << 20
	minQueued = 1 << 10
	// MaxDecoded is the limit of memory of one decoded message. A message of an exporter takes 9 MiB at most: 8 MiB for
	// objects (exporter/catalog.MaxMemory), and 1 KiB for each change around them.
	MaxDecoded = 12 << 20
	// maxChanges is the limit of changes in a message, which is also the exporters' own.
	maxChanges = 1000
	// maxHello is the limit of a Hello, in bytes.
	maxHello = 16 << 10
)

const (
	// MaxMessage is the limit of an uncompressed message in bytes. Exporters stay below 512 KiB, unless a single
	// object is larger.
	MaxMessage = 1 << 20
	// maxOperator is the limit of memory of an operator's decoded message.
	maxOperator = 4 << 20
	// maxStreams of one connection: an exporter has one, an operator several.
	maxStreams = 16
	// window is the flow control window of an exporter's stream, compressed. gRPC would let it grow to 16 MiB.
	window = 256 << 10
)

// ServerOptions are the additional options of a gRPC server for exporters: Publish receives undecoded messages, and
// decides by their bytes whether to decode them.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(streams.Codec{Most: maxOperator}),
		grpc.MaxRecvMsgSize(MaxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(4 * window),
	}
}

// The field numbers of PublishRequest, to inspect a message before it is decoded.
const (
	helloField             protowire.Number = 1
	snapshotBeginField     protowire.Number = 2
	changesField           protowire.Number = 3
	snapshotEndField       protowire.Number = 4
	heartbeatField         protowire.Number = 5
	snapshotUnchangedField protowire.Number = 6
	// unknownField is one of another wire type, which decoding does not know whatever its number is.
	unknownField protowire.Number = -1
	// changeField is the field Changes.changes.
	changeField protowire.Number = 1
)

type message struct {
	data streams.Raw
	// kind is the number of its field, 0 for none or unknownField, and changes the number of its changes.
	kind    protowire.Number
	changes int
}

func (m message) name() string {
	if f := (&semaphorev1.PublishRequest{}).ProtoReflect().Descriptor().Fields().ByNumber(m.kind); f != nil {
		return string(f.Name())
	}
	return "a message of an unknown type"
}

// inspect determines what a message is without decoding it. An error is a gRPC status.
func inspect(data streams.Raw) (message, error) {
	m := message{data: data}
	for rest := []byte(data); len(rest) > 0; {
		number, kind, n := protowire.ConsumeField(rest)
		if n < 0 {
			return m, status.Errorf(codes.InvalidArgument, "a message of %d bytes cannot be parsed: %v", len(data),
				protowire.ParseError(n))
		}
		if m.kind != 0 {
			return m, status.Error(codes.InvalidArgument, "a message has several fields: it must have one")
		}
		if m.kind = number; kind != protowire.BytesType {
			m.kind = unknownField
		}
		if m.kind == changesField {
			_, _, tag := protowire.ConsumeTag(rest)
			content, _ := protowire.ConsumeBytes(rest[tag:n])
			if err := m.count(content); err != nil {
				return m, err
			}
		}
		rest = rest[n:]
	}
	switch {
	case m.changes > maxChanges:
		return m, status.Errorf(codes.ResourceExhausted, "a message of %d changes exceeds the limit of %d", m.changes,
			maxChanges)
	case m.kind == helloField && len(data) > maxHello:
		return m, status.Errorf(codes.ResourceExhausted, "a hello of %d bytes exceeds the limit of %d", len(data), maxHello)
	}
	return m, nil
}

func (m *message) count(changes []byte) error {
	for len(changes) > 0 {
		number, kind, n := protowire.ConsumeField(changes)
		if n < 0 {
			return status.Errorf(codes.InvalidArgument, "changes cannot be parsed: %v", protowire.ParseError(n))
		}
		if number == changeField && kind == protowire.BytesType { // decoding takes another for a field that it does not know
			m.changes++
		}
		changes = changes[n:]
	}
	return nil
}

// inbox holds the messages of a stream that are not handled yet.
type inbox struct {
	messages chan message
	room     *semaphore.Weighted
	// end is the error that ended the stream, set before messages is closed.
	end error
}

func newInbox() *inbox {
	return &inbox{messages: make(chan message, maxQueued/minQueued), room: semaphore.NewWeighted(maxQueued)}
}

func weight(m message) int64 { return int64(min(max(len(m.data), minQueued), maxQueued)) }

func (in *inbox) fill(call grpc.BidiStreamingServer[semaphorev1.PublishRequest, semaphorev1.PublishResponse]) {
	defer close(in.messages)
	in.end = in.read(call.Context(), call)
}

func (in *inbox) read(ctx context.Context, call grpc.ServerStream) error {
	for {
		var data streams.Raw
		if err := call.RecvMsg(&data); err != nil {
			return err
		}
		m, err := inspect(data)
		if err != nil {
			return err
		}
		if in.room.Acquire(ctx, weight(m)) != nil {
			return errDisconnected
		}
		in.messages <- m // never blocks, as each message weighs minQueued at least
	}
}

func (in *inbox) release(m message) { in.room.Release(weight(m)) }
