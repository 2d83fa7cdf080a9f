package broker

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
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

// leanStream attaches as a node and acknowledges everything that it receives. It implements the minimum of gRPC: in
// production each agent has its own node, and here the gRPC cost of an agent would count a thousand times.
func leanStream(ctx context.Context, f files, address, node string) error {
	cfg := f.client()
	cfg.NextProtos = []string{"h2"}
	c, err := (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	in, out := bufio.NewReader(c), bufio.NewWriter(c)
	frames := http2.NewFramer(out, in)
	frames.SetReuseFrames()
	if err := attach(out, frames, address, node); err != nil {
		return err
	}
	var received []byte // messages, the last of which may not have come whole
	for {
		if in.Buffered() == 0 {
			if err := out.Flush(); err != nil {
				return err
			}
		}
		frame, err := frames.ReadFrame()
		if err != nil {
			return err
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				err = frames.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !frame.IsAck() {
				err = frames.WritePing(true, frame.Data)
			}
		case *http2.GoAwayFrame, *http2.RSTStreamFrame:
			return fmt.Errorf("the broker ended the stream: %v", frame)
		case *http2.DataFrame:
			received, err = acknowledge(frames, append(received, frame.Data()...))
		}
		if err != nil {
			return err
		}
	}
}

// messageHeader is the size of a gRPC message header.
const messageHeader = 5

// acknowledge answers the messages that came whole, and returns the rest.
func acknowledge(frames *http2.Framer, received []byte) ([]byte, error) {
	rest := received
	for len(rest) >= messageHeader {
		size := messageHeader + int(binary.BigEndian.Uint32(rest[1:]))
		if len(rest) < size {
			break
		}
		var m semaphorev1.AttachResponse
		if err := proto.Unmarshal(rest[messageHeader:size], &m); err != nil {
			return nil, err
		}
		revision := m.GetSynced().GetRevision()
		if all := m.GetChanges().GetChanges(); len(all) > 0 {
			revision = all[len(all)-1].GetRevision()
		}
		if revision > 0 {
			if err := send(frames, players.Applied(revision)); err != nil {
				return nil, err
			}
		}
		rest = rest[size:]
	}
	return append(received[:0], rest...), nil
}

func send(frames *http2.Framer, m *semaphorev1.AttachRequest) error {
	data, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, messageHeader), m)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint32(data[1:], uint32(len(data)-messageHeader))
	return frames.WriteData(1, false, data)
}

// attach writes what an HTTP/2 client sends to attach as a node.
func attach(out io.Writer, frames *http2.Framer, address, node string) error {
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
	_, err := io.WriteString(out, http2.ClientPreface)
	return errors.Join(err,
		frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}),
		frames.WriteWindowUpdate(0, window),
		frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headers.Bytes(), EndHeaders: true}),
		send(frames, players.AgentHello(&semaphorev1.AgentHello{})), send(frames, players.Report()))
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
