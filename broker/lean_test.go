package broker

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/kube-semaphore/semaphore/broker/peering"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// agentsOf is set in the process that runs a benchmark's agents: the broker's address and a bundle.
const agentsOf = "SEMAPHORE_BENCH_AGENTS"

// startAgents starts a process with agents, so that their cost does not count as the broker's. stop ends it.
func startAgents(b testing.TB, address, bundle string) (stop func()) {
	b.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestAgentsOfABenchmark$")
	cmd.Env = append(os.Environ(), agentsOf+"="+address+" "+bundle)
	cmd.Stderr = os.Stderr
	stdin := testkit.Value(cmd.StdinPipe())(b)
	testkit.Must(b, cmd.Start())
	return sync.OnceFunc(func() {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			b.Errorf("agents: %v", err)
		}
	})
}

func TestAgentsOfABenchmark(t *testing.T) {
	what := strings.Fields(os.Getenv(agentsOf))
	if len(what) != 2 {
		t.Skip("carries the agents of a benchmark, which starts it")
	}
	address, f := what[0], files{bundle: what[1]}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range benchAgents {
		wg.Go(func() {
			if err := leanStream(ctx, f, address, fmt.Sprintf("n%d", i)); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		})
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the benchmark ends
	cancel()
	wg.Wait()
}

// dial connects; the connection closes when ctx ends.
func dial(ctx context.Context, f files, address string, protocols ...string) (*tls.Conn, func(), error) {
	cfg := f.client()
	cfg.NextProtos = protocols
	c, err := (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	return c.(*tls.Conn), func() { stop(); c.Close() }, nil
}

// leanStream attaches as a node and acknowledges everything that it receives. It implements the minimum of HTTP/2 and
// gRPC: in production each agent has its own node, and here the gRPC cost of an agent would count a thousand times.
func leanStream(ctx context.Context, f files, address, node string) error {
	c, stop, err := dial(ctx, f, address, "h2")
	if err != nil {
		return err
	}
	defer stop()
	if _, err := c.Write(attaching(address, node)); err != nil {
		return err
	}
	in, out := bufio.NewReader(c), []byte(nil)
	var payload, received []byte // received are messages, the last of which may not have come whole
	for {
		if in.Buffered() == 0 && len(out) > 0 {
			if _, err := c.Write(out); err != nil {
				return err
			}
			out = out[:0]
		}
		header, err := in.Peek(frameHeader)
		if err != nil {
			return err
		}
		size, kind, flags := int(header[0])<<16|int(header[1])<<8|int(header[2]), http2.FrameType(header[3]),
			http2.Flags(header[4])
		_, _ = in.Discard(frameHeader) // which are there
		payload = slices.Grow(payload[:0], size)[:size]
		if _, err := io.ReadFull(in, payload); err != nil {
			return err
		}
		switch {
		case kind == http2.FrameSettings && !flags.Has(http2.FlagSettingsAck):
			out = appendFrame(out, http2.FrameSettings, http2.FlagSettingsAck, 0, nil)
		case kind == http2.FramePing && !flags.Has(http2.FlagPingAck):
			out = appendFrame(out, http2.FramePing, http2.FlagPingAck, 0, payload)
		case kind == http2.FrameGoAway, kind == http2.FrameRSTStream:
			return fmt.Errorf("the broker ended the stream: %s", payload)
		case kind == http2.FrameData:
			received = append(received, payload...)
			for len(received) >= messageHeader {
				size := messageHeader + int(binary.BigEndian.Uint32(received[1:]))
				if len(received) < size {
					break
				}
				if revision := revisionOf(received[messageHeader:size]); revision > 0 {
					out = appendFrame(out, http2.FrameData, 0, 1, appendApplied(make([]byte, messageHeader, 32), revision))
				}
				received = append(received[:0], received[size:]...)
			}
		}
	}
}

// Sizes of an HTTP/2 frame header and of a gRPC message header.
const frameHeader, messageHeader = 9, 5

func appendFrame(to []byte, kind http2.FrameType, flags http2.Flags, stream uint32, payload []byte) []byte {
	to = append(to, byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), byte(kind), byte(flags))
	return append(binary.BigEndian.AppendUint32(to, stream), payload...)
}

// appendApplied appends an Applied after its message header.
func appendApplied(to []byte, revision uint64) []byte {
	content := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), revision)
	to = protowire.AppendBytes(protowire.AppendTag(to, 3, protowire.BytesType), content)
	binary.BigEndian.PutUint32(to[1:], uint32(len(to)-messageHeader))
	return to
}

// attaching returns what an HTTP/2 client sends to attach as a node.
func attaching(address, node string) []byte {
	const window = 1 << 30 // more than any benchmark sends
	var headers bytes.Buffer
	encoder := hpack.NewEncoder(&headers)
	for _, h := range [][2]string{
		{":method", "POST"}, {":scheme", "https"}, {":path", semaphorev1.PeeringService_Attach_FullMethodName},
		{":authority", address},
		{"content-type", "application/grpc"}, {"te", "trailers"}, {"authorization", "Bearer " + node},
	} {
		_ = encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}) // into memory
	}
	out := []byte(http2.ClientPreface)
	out = appendFrame(out, http2.FrameSettings, 0, 0,
		binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(nil, uint16(http2.SettingInitialWindowSize)), window))
	out = appendFrame(out, http2.FrameWindowUpdate, 0, 0, binary.BigEndian.AppendUint32(nil, window))
	out = appendFrame(out, http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1, headers.Bytes())
	for _, m := range []*semaphorev1.AttachRequest{players.AgentHello(&semaphorev1.AgentHello{}), players.Report()} {
		data, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, messageHeader), m)
		if err != nil {
			panic(err) // these two can be encoded
		}
		binary.BigEndian.PutUint32(data[1:], uint32(len(data)-messageHeader))
		out = appendFrame(out, http2.FrameData, 0, 1, data)
	}
	return out
}

// revisionOf returns the revision with which a message is acknowledged: the last one of changes, or that of an end
// mark; 0 for none.
func revisionOf(message []byte) uint64 {
	// field returns the last value of a field number.
	field := func(data []byte, number protowire.Number) (bytes []byte, n uint64) {
		for len(data) > 0 {
			is, kind, tag := protowire.ConsumeTag(data)
			size := protowire.ConsumeFieldValue(is, kind, data[tag:])
			if tag < 0 || size < 0 {
				return nil, 0
			}
			if value := data[tag : tag+size]; is == number {
				if kind == protowire.BytesType {
					bytes, _ = protowire.ConsumeBytes(value)
				} else {
					n, _ = protowire.ConsumeVarint(value)
				}
			}
			data = data[tag+size:]
		}
		return bytes, n
	}
	const changes, synced = 2, 3 // of AttachResponse
	if all, _ := field(message, changes); all != nil {
		last, _ := field(all, 1)
		_, revision := field(last, 1)
		return revision
	}
	end, _ := field(message, synced)
	_, revision := field(end, 1)
	return revision
}

func TestRevisionOf(t *testing.T) {
	for _, c := range []struct {
		want    uint64
		message *semaphorev1.AttachResponse
	}{
		{0, &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Attached{
			Attached: &semaphorev1.Attached{Node: "n1"}}}},
		{7, &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Synced{Synced: &semaphorev1.Synced{Revision: 7,
			Clusters: []string{"c2"}}}}},
		{9, &semaphorev1.AttachResponse{Message: &semaphorev1.AttachResponse_Changes{Changes: &semaphorev1.PeeringChanges{
			Changes: []*semaphorev1.PeeringChange{{Revision: 8},
				{Revision: 9, Change: &semaphorev1.PeeringChange_DeleteDevice{DeleteDevice: "c2"}}},
		}}}},
	} {
		data := testkit.Value(proto.Marshal(c.message))(t)
		if got := revisionOf(data); got != c.want {
			t.Errorf("%v: revision %d", c.message, got)
		}
	}
}

// bareBroker is a gRPC server without a broker's work, the minimal cost of a change with gRPC. Its streams send an
// encoded message and count the answers.
type bareBroker struct {
	semaphorev1.UnimplementedPeeringServiceServer
	payload mem.BufferSlice
	acks    atomic.Int64
	acked   chan struct{}

	mu      sync.Mutex
	changed []chan struct{}
}

// Attach implements semaphorev1.PeeringServiceServer.
func (p *bareBroker) Attach(call grpc.BidiStreamingServer[semaphorev1.AttachRequest,
	semaphorev1.AttachResponse]) error {
	changed := make(chan struct{}, 1)
	p.mu.Lock()
	p.changed = append(p.changed, changed)
	p.mu.Unlock()
	go func() {
		for {
			m, err := call.Recv()
			if err != nil {
				return
			}
			if m.GetApplied() != nil && p.acks.Add(1) == benchAgents {
				p.acked <- struct{}{}
			}
		}
	}()
	for {
		select {
		case <-changed:
			if err := call.SendMsg(p.payload); err != nil {
				return err
			}
		case <-call.Context().Done():
			return call.Context().Err()
		}
	}
}

// encodedCodec sends messages that are already encoded.
type encodedCodec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c encodedCodec) Marshal(v any) (mem.BufferSlice, error) { return v.(mem.BufferSlice), nil }

func startBare(b testing.TB, f files, payload []byte) *bareBroker {
	b.Helper()
	p := &bareBroker{acked: make(chan struct{}, 1), payload: mem.BufferSlice{mem.SliceBuffer(payload)}}
	g := grpc.NewServer(append(peering.ServerOptions(), grpc.Creds(credentials.NewTLS(f.source(b).ServerOnlyTLS())),
		grpc.ForceServerCodecV2(encodedCodec{encoding.GetCodecV2("proto")}))...)
	semaphorev1.RegisterPeeringServiceServer(g, p)
	l := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(b)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(l)
	}()
	stop := startAgents(b, l.Addr().String(), f.bundle)
	b.Cleanup(func() { stop(); g.Stop(); <-done })
	benchUntil(b, "all agents have come", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.changed) == benchAgents
	})
	return p
}

// change sends the payload to all and returns when all have answered.
func (p *bareBroker) change() {
	p.acks.Store(0)
	for _, c := range p.changed {
		c <- struct{}{}
	}
	<-p.acked
}
