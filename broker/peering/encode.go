package peering

import (
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

type entry = streams.Entry[key, *record]

// record is a device or a peer in the journal, or its deletion, which has neither. It is encoded when the first agent
// needs it, and the bytes are sent to all agents.
type record struct {
	change *semaphorev1.PeeringChange // a Device or a Peer, with no revision
	digest streams.Digest
	encoded
}

// encoded is an entry as a field of PeeringChanges: tag, length and PeeringChange.
type encoded struct {
	once   sync.Once
	buffer mem.Buffer
	err    error
}

func (s *State) encode(e *entry) (mem.Buffer, error) {
	of := &e.Value.encoded
	of.once.Do(func() {
		s.encodings.Add(1)
		m := message(e)
		data := protowire.AppendTag(nil, changesField, protowire.BytesType)
		data = protowire.AppendVarint(data, uint64(proto.Size(m)))
		if data, of.err = (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(data, m); of.err != nil {
			of.err = status.Errorf(codes.Internal, "encode the change of %s/%s: %v", e.Key.cluster, e.Key.node, of.err)
			return
		}
		of.buffer = mem.SliceBuffer(data)
	})
	return of.buffer, of.err
}

// The field numbers of a batch, which is encoded by hand: AttachResponse.changes and PeeringChanges.changes.
const (
	batchField   protowire.Number = 2
	changesField protowire.Number = 1
)

// message returns an entry as it is sent. It shares the entry's immutable value.
func message(e *entry) *semaphorev1.PeeringChange {
	out := &semaphorev1.PeeringChange{Revision: e.Revision}
	out.ObservedAt = semaphorev1.Time(e.ObservedAt)
	switch {
	case !e.Deleted:
		out.Change = e.Value.change.GetChange()
	case e.Key.node == "":
		out.Change = &semaphorev1.PeeringChange_DeleteDevice{DeleteDevice: e.Key.cluster}
	default:
		out.Change = &semaphorev1.PeeringChange_DeletePeer{DeletePeer: &semaphorev1.PeerKey{Cluster: e.Key.cluster,
			Node: e.Key.node}}
	}
	return out
}

// Frame is one message to an agent. A batch of changes is already encoded, in buffers that frames of other agents
// share.
type Frame struct {
	// message is nil for a batch.
	message *semaphorev1.AttachResponse
	// changes is the number of changes of a batch, revision that of the last, buffers are their encodings.
	changes  int
	revision uint64
	buffers  mem.BufferSlice
}

// Message returns the message as an agent decodes it. It fails if the frame's bytes cannot be decoded.
func (f *Frame) Message() (*semaphorev1.AttachResponse, error) {
	if f.message != nil {
		return f.message, nil
	}
	m := &semaphorev1.AttachResponse{}
	return m, proto.Unmarshal(f.buffers.Materialize(), m)
}

// batch returns a frame of the first n entries, as many as the limits of a message permit. An error is a gRPC status.
func (s *State) batch(entries []*entry) (f *Frame, n int, err error) {
	f = &Frame{buffers: make(mem.BufferSlice, 1, min(len(entries), s.maxChanges)+1)}
	size := 0
	for n < len(entries) && n < s.maxChanges {
		b, err := s.encode(entries[n])
		if err != nil {
			return nil, 0, err
		}
		if n > 0 && size+b.Len() > maxBatchBytes {
			break
		}
		f.buffers = append(f.buffers, b)
		size += b.Len()
		n++
	}
	header := protowire.AppendTag(nil, batchField, protowire.BytesType)
	f.buffers[0] = mem.SliceBuffer(protowire.AppendVarint(header, uint64(size)))
	f.changes, f.revision = n, entries[n-1].Revision
	return f, n, nil
}

// ServerOptions are the additional options of a gRPC server for agents: it sends the buffers of a Frame unchanged,
// idle streams of thousands of agents cost little memory, and messages of agents are bounded.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{streams.Codec{Most: maxDecoded}}),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		// Agents send little. A constant window avoids the pings by which gRPC estimates the bandwidth.
		grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(window),
		// By default gRPC keeps a read buffer of 32 KiB for each connection. It keeps no write buffer while idle.
		grpc.ReadBufferSize(readBuffer),
	}
}

const (
	// maxMessage is the limit of a message of an agent in bytes, and maxDecoded of the memory that it takes once
	// decoded.
	maxMessage = 256 << 10
	maxDecoded = 4 << 20
	// maxStreams of one connection: an agent has one.
	maxStreams = 2

	window     = 64 << 10
	readBuffer = 2 << 10
)

type codec struct{ encoding.CodecV2 }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*Frame)
	switch {
	case !ok:
		return c.CodecV2.Marshal(v)
	case f.message != nil:
		return c.CodecV2.Marshal(f.message)
	default:
		return f.buffers, nil
	}
}
