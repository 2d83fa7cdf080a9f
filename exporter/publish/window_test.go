package publish

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/time/rate"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

// framed is a broker that was taken over and speaks HTTP/2 itself, on one connection.
type framed struct {
	*http2.Framer
	// stream is the one that the exporter has opened. settings and window, of the connection, are what it announced.
	stream   uint32
	settings map[http2.SettingID]uint32
	window   uint32
	// reset has the code with which the exporter ended the stream.
	reset chan http2.ErrCode
}

// accept waits for the exporter's stream.
func accept(t *testing.T, listener net.Listener) *framed {
	t.Helper()
	conn, err := listener.Accept()
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	_, err = io.ReadFull(conn, make([]byte, len(http2.ClientPreface)))
	must(t, err)
	f := &framed{Framer: http2.NewFramer(conn, conn), settings: map[http2.SettingID]uint32{}, window: 65535,
		reset: make(chan http2.ErrCode, 1)}
	must(t, f.WriteSettings())
	for f.stream == 0 {
		frame, err := f.ReadFrame()
		must(t, err)
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				must(t, frame.ForeachSetting(func(s http2.Setting) error {
					f.settings[s.ID] = s.Val
					return nil
				}))
				must(t, f.WriteSettingsAck())
			}
		case *http2.WindowUpdateFrame:
			f.window += frame.Increment
		case *http2.HeadersFrame:
			f.stream = frame.StreamID
		}
	}
	done := make(chan struct{})
	go func() { // otherwise the exporter would wait until it is read
		defer close(done)
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			if frame, ok := frame.(*http2.RSTStreamFrame); ok && frame.StreamID == f.stream {
				f.reset <- frame.ErrCode // once: a stream ends once
			}
		}
	}()
	t.Cleanup(func() { conn.Close(); <-done })
	return f
}

// headers begins the answer to the stream, with n fields of 1000 bytes more. The exporter may end the connection
// meanwhile.
func (f *framed) headers(t *testing.T, n int) {
	t.Helper()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	fields := append([]hpack.HeaderField{{Name: ":status", Value: "200"},
		{Name: "content-type", Value: "application/grpc"}},
		slices.Repeat([]hpack.HeaderField{{Name: "more", Value: strings.Repeat("x", 1000), Sensitive: true}}, n)...)
	for _, field := range fields {
		must(t, encoder.WriteField(field))
	}
	fragment := block.Next(16 << 10)
	err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: f.stream, BlockFragment: fragment,
		EndHeaders: block.Len() == 0})
	for err == nil && block.Len() > 0 {
		fragment = block.Next(16 << 10)
		err = f.WriteContinuation(f.stream, block.Len() == 0, fragment)
	}
}

// TestWindowsAndHeaders: gRPC buffers no more than the stated bounds of what a broker sends that speaks HTTP/2 itself:
// headers of any size, and messages without regard to the exporter's windows. It announces the bounds, and ends the
// stream of a broker that ignores them.
func TestWindowsAndHeaders(t *testing.T) {
	log := testkit.CaptureLog(t)
	b := newBench(t, "c2")
	secured := b.trust.Source(t, "c2", "broker").ServerTLS(func(spiffeid.ID) error { return nil })
	secured.NextProtos = []string{"h2"}
	listener, err := tls.Listen("tcp", loopback.Address(t), secured)
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	p := b.publisher("c2", listener.Addr().String(), Options{Source: source{}})
	p.answers.SetLimit(20) // it reads five messages of the test a second
	p.answers.SetBurst(20)
	testkit.Run(t, p.Run)
	ends := func(reason string) {
		t.Helper()
		testkit.Eventually(t, time.Minute, "the stream ends: "+reason, testkit.State(func() (bool, string) {
			return strings.Contains(log.String(), reason), log.String()
		}))
	}

	f := accept(t, listener)
	if f.settings[http2.SettingInitialWindowSize] != window || f.window != window ||
		f.settings[http2.SettingMaxHeaderListSize] != maxHeaders {
		t.Errorf("the exporter announces %v, and %d bytes for the connection", f.settings, f.window)
	}
	f.headers(t, maxHeaders/1000+2)
	ends("peer header list size exceeded limit")

	f = accept(t, listener)
	f.headers(t, 0)
	// A message of gRPC that is not compressed has its length after a byte. This one has a field of a later version.
	content := protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), make([]byte, 1000))
	message := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(content)))
	message = append(message, content...)
	for sent := 0; sent <= 2*window; sent += len(message) {
		if f.WriteData(f.stream, false, message) != nil {
			break // the next line has the reason
		}
	}
	// Only then the exporter may read on: else it could read while these bytes arrive, and none would exceed its window.
	select {
	case code := <-f.reset:
		if code != http2.ErrCodeFlowControl {
			t.Errorf("the exporter ends the stream with %v", code)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the exporter does not end the stream of a broker that ignores its window")
	}
	p.answers.SetLimit(rate.Inf) // the reason comes after what is buffered
	ends("data exceeding the limit")
}
