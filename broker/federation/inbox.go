package federation

import (
	"context"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kube-semaphore/semaphore/internal/stream/wire"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// maxWaiting is how many bytes of the messages of a stream may wait to be taken, as they came; then gRPC's flow control holds
	// the exporter back. minWaiting is what each of them counts for at least.
	maxWaiting = 1 << 20
	minWaiting = 1 << 10
	// maxDecoded is what one message may take of memory once it is decoded. 512 KiB of endpoints without anything but an address,
	// the worst that an exporter sends, take about 9 MiB.
	maxDecoded = 12 << 20
	// maxChanges of one message: exporters send as many.
	maxChanges = 1000
	// maxHello is the size of a Hello.
	maxHello = 16 << 10
)

const (
	// MaxMessage is what an exporter may send at once, bytes, unpacked; senders stay under 512 KiB, but for a single object that is
	// larger.
	MaxMessage = 1 << 20
	// maxOperator is what a message of an operator may take of memory once decoded.
	maxOperator = 4 << 20
	// maxStreams on one connection: an exporter has one, an operator some.
	maxStreams = 16
	// window is what may wait of a stream of an exporter, still packed. gRPC would let it grow to 16 MiB.
	window = 256 << 10
)

// ServerOptions are what a gRPC server that serves exporters needs beside what all have: Publish reads a message as it came, by
// the codec, and decides by its bytes whether to decode it.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(wire.Codec{Most: maxOperator}),
		grpc.MaxRecvMsgSize(MaxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(4 * window),
	}
}

// The fields of PublishRequest, by hand: a message is looked at before it is decoded.
const (
	helloField             protowire.Number = 1
	snapshotBeginField     protowire.Number = 2
	changesField           protowire.Number = 3
	snapshotEndField       protowire.Number = 4
	snapshotUnchangedField protowire.Number = 6
	// changeField is that of Changes.changes.
	changeField protowire.Number = 1
)

// message is one that has come and is not decoded yet.
type message struct {
	data wire.Raw
	// kind is the field that it has, 0 for none, and changes how many Changes there are in it.
	kind    protowire.Number
	changes int
}

// name is what the message is called in the protocol.
func (m message) name() string {
	if f := (&semaphorev1.PublishRequest{}).ProtoReflect().Descriptor().Fields().ByNumber(m.kind); f != nil {
		return string(f.Name())
	}
	return "a message of no known sort"
}

// look sees what a message is, by its bytes. An error is a gRPC status.
func look(data wire.Raw) (message, error) {
	m := message{data: data}
	for rest := []byte(data); len(rest) > 0; {
		number, kind, n := protowire.ConsumeField(rest)
		if n < 0 {
			return m, status.Errorf(codes.InvalidArgument, "a message of %d bytes that is none: %v", len(data), protowire.ParseError(n))
		}
		if m.kind != 0 {
			return m, status.Errorf(codes.InvalidArgument, "a message with both the fields %d and %d: it holds one", m.kind, number)
		}
		m.kind = number
		if number == changesField && kind == protowire.BytesType {
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
		return m, status.Errorf(codes.ResourceExhausted, "a message of %d changes: %d is the most", m.changes, maxChanges)
	case m.kind == helloField && len(data) > maxHello:
		return m, status.Errorf(codes.ResourceExhausted, "a hello of %d bytes: %d is the most", len(data), maxHello)
	}
	return m, nil
}

func (m *message) count(changes []byte) error {
	for len(changes) > 0 {
		number, kind, n := protowire.ConsumeField(changes)
		if n < 0 {
			return status.Errorf(codes.InvalidArgument, "changes that are none: %v", protowire.ParseError(n))
		}
		if number == changeField && kind == protowire.BytesType { // decoding takes another for a field that it does not know
			m.changes++
		}
		changes = changes[n:]
	}
	return nil
}

// inbox is what has come on a stream and was not taken yet.
type inbox struct {
	messages chan message
	room     *semaphore.Weighted
	// end is why nothing more comes, once messages is closed.
	end error
}

func newInbox() *inbox {
	return &inbox{messages: make(chan message, maxWaiting/minWaiting), room: semaphore.NewWeighted(maxWaiting)}
}

func weight(m message) int64 { return int64(min(max(len(m.data), minWaiting), maxWaiting)) }

// fill reads until the call ends.
func (in *inbox) fill(call grpc.BidiStreamingServer[semaphorev1.PublishRequest, semaphorev1.PublishResponse]) {
	defer close(in.messages)
	in.end = in.read(call.Context(), call)
}

func (in *inbox) read(ctx context.Context, call grpc.ServerStream) error {
	for {
		var data wire.Raw
		if err := call.RecvMsg(&data); err != nil {
			return err
		}
		m, err := look(data)
		if err != nil {
			return err
		}
		if in.room.Acquire(ctx, weight(m)) != nil {
			return errCut
		}
		in.messages <- m // there is room by what each counts for
	}
}

// taken makes the room of a message that was taken free.
func (in *inbox) taken(m message) { in.room.Release(weight(m)) }
