package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a proxy in front of a server that echoes lines.
func start(t *testing.T) *Proxy {
	t.Helper()
	behind := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := behind.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	front := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	p := New(front, func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", behind.Addr().String())
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		testkit.NoError(t, <-done)
		behind.Close()
		<-served
	})
	return p
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	c := testkit.Value(net.Dial("tcp", p.Address().String()))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// say sends a line and returns the time until the answer.
func say(c net.Conn, line string, within time.Duration) (time.Duration, error) {
	started := time.Now()
	if err := c.SetDeadline(started.Add(within)); err != nil {
		return 0, err
	}
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return 0, err
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	if err == nil && strings.TrimSpace(answer) != line {
		err = errors.New("another answer")
	}
	return time.Since(started), err
}

func TestPassesAndEnds(t *testing.T) {
	p := start(t)
	c := dial(t, p)
	testkit.Value(say(c, "hello", time.Minute))(t)
	// The proxy counts after it has written, so the answer may arrive first.
	testkit.Eventually(t, time.Minute, "6 bytes passed", testkit.True(func() bool { return p.Passed() == 6 }))
	testkit.Must(t, c.(*net.TCPConn).CloseWrite())
	if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
		t.Errorf("after the end: %q, %v", b, err)
	}
}

func TestLatency(t *testing.T) {
	p := start(t)
	p.Set(Conditions{Latency: 100 * time.Millisecond})
	if took, err := say(dial(t, p), "hello", time.Minute); err != nil || took < 200*time.Millisecond {
		t.Errorf("there and back took %s, %v; want 200 ms", took, err)
	}
}

func TestRate(t *testing.T) {
	p := start(t)
	p.Set(Conditions{Rate: 1000})
	if took, err := say(dial(t, p), strings.Repeat("x", 500), time.Minute); err != nil || took < 400*time.Millisecond {
		t.Errorf("500 bytes at 1000 a second took %s, %v", took, err)
	}
}

func TestStall(t *testing.T) {
	p := start(t)
	old := dial(t, p)
	testkit.Value(say(old, "hello", time.Minute))(t)
	p.Set(Conditions{Stall: true})
	for name, c := range map[string]net.Conn{"that existed": old, "that came": dial(t, p)} {
		if _, err := say(c, name, 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a connection %s: %v; want silence", name, err)
		}
	}
	p.Set(Conditions{})
	testkit.Must(t, old.SetDeadline(time.Now().Add(time.Minute)))
	if line, err := bufio.NewReader(old).ReadString('\n'); err != nil || line != "that existed\n" {
		t.Errorf("after the stall: %q, %v; want what waited", line, err)
	}
}

func TestOrphan(t *testing.T) {
	p := start(t)
	c := dial(t, p)
	testkit.Value(say(c, "hello", time.Minute))(t)
	p.Orphan()
	for range 3 {
		if _, err := say(c, "anyone?", 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a half-open connection: %v; want silence", err)
		}
	}
	if _, err := say(dial(t, p), "hello", time.Minute); err != nil {
		t.Errorf("a newcomer: %v", err)
	}
}

func TestResetAndRefuse(t *testing.T) {
	p := start(t)
	c := dial(t, p)
	testkit.Value(say(c, "hello", time.Minute))(t)
	p.Set(Conditions{Refuse: true})
	p.Reset()
	if _, err := say(c, "hello", time.Minute); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("after Reset: %v; want a reset", err)
	}
	// The reset can arrive before connect(2) has returned, or after it.
	newcomer, err := net.Dial("tcp", p.Address().String())
	if err == nil {
		defer newcomer.Close()
		_, err = say(newcomer, "hello", time.Minute)
	}
	if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("a newcomer: %v; want a reset", err)
	}
	if n := p.Accepted(); n != 2 {
		t.Errorf("accepted %d, want 2", n)
	}
}
