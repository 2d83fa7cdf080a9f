package echo

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestSocat checks the listeners for the arguments of the conformance suite, their answers, and the error for unknown
// arguments.
func TestSocat(t *testing.T) {
	for text, want := range map[string]string{
		"TCP-LISTEN:42,crlf,reuseaddr,fork":             "tcp4 :42",
		"UDP-LISTEN:42,crlf,reuseaddr,fork":             "udp4 :42",
		"TCP6-LISTEN:42,crlf,reuseaddr,fork":            "tcp6 :42",
		"UDP6-LISTEN:42,crlf,reuseaddr,fork,ipv6only=0": "udp :42",
		"EXEC:ls": "",
	} {
		network, address, err := listenerOf(text)
		if got := network + " " + address; err == nil && got != want || (err != nil) != (want == "") {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	listener := testkit.Value(net.Listen("tcp4", "127.0.0.1:0"))(t)
	packets := testkit.Value(net.ListenPacket("udp4", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	answer := printed(t.Context(), "echo pod ip")
	go func() { done <- answerConnections(ctx, listener, answer) }()
	go func() { done <- answerPackets(ctx, packets, answer) }()
	for _, address := range []net.Addr{listener.Addr(), packets.LocalAddr()} {
		if got := ask(t, address.Network(), address.String()); got != "pod ip\r\n" {
			t.Errorf("%s: %q", address.Network(), got)
		}
	}
	cancel()
	for range 2 {
		testkit.NoError(t, <-done)
	}
}

func ask(t *testing.T, network, address string) string {
	t.Helper()
	conn := testkit.Value(net.Dial(network, address))(t)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	testkit.Value(conn.Write([]byte("hi\n")))(t)
	if udp, ok := conn.(*net.UDPConn); ok {
		got := make([]byte, 100)
		n, _ := udp.Read(got)
		return string(got[:n])
	}
	_ = conn.(*net.TCPConn).CloseWrite()
	got, _ := io.ReadAll(conn)
	return string(got)
}
