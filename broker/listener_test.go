package broker

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Connections beyond the limit are closed at once; one that ends makes room for another.
func TestR04ConnectionsAreBounded(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &bounded{Listener: inner, max: 2, refused: prometheus.NewCounter(prometheus.CounterOpts{Name: "test"})}
	accepted := make(chan net.Conn, 8)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	defer func() {
		l.Close()
		<-done
	}()
	dial := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	next := func() net.Conn {
		t.Helper()
		select {
		case conn := <-accepted:
			t.Cleanup(func() { conn.Close() })
			return conn
		case <-time.After(5 * time.Second):
			t.Fatal("not accepted")
			return nil
		}
	}
	dial()
	first := next()
	dial()
	next()
	over := dial()
	over.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := over.Read(make([]byte, 1)); err == nil || errors.Is(err, io.ErrNoProgress) || isTimeout(err) {
		t.Fatalf("the third connection: %v, want it closed", err)
	}
	first.Close()
	first.Close() // gRPC may close twice
	dial()
	next()
	if n := l.open.Load(); n != 2 {
		t.Errorf("%d count as open", n)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
