package echo

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestHello checks both protocols, a client that sends first, and that nothing is left afterwards.
func TestHello(t *testing.T) {
	listener := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	packets := testkit.Value(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- hello(ctx, listener, packets, "pod ip 10.1.0.1") }()
	for _, address := range []net.Addr{listener.Addr(), packets.LocalAddr()} {
		conn, err := net.Dial(address.Network(), address.String())
		testkit.Must(t, err)
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		testkit.Value(conn.Write([]byte("hi\n")))(t)
		var got []byte
		if address.Network() == "tcp" {
			got, err = io.ReadAll(conn)
		} else {
			got = make([]byte, 100)
			var n int
			n, err = conn.Read(got)
			got = got[:n]
		}
		if err != nil || string(got) != "pod ip 10.1.0.1\n" {
			t.Errorf("%s: %q, %v", address.Network(), got, err)
		}
		conn.Close()
	}
	cancel()
	testkit.NoError(t, <-done)
}
