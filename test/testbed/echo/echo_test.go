package echo

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

func TestServe(t *testing.T) {
	listener := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, listener, Answer{Pod: "p", Namespace: "n", Node: "k"}, 0) }()

	base := "http://" + listener.Addr().String()
	request := testkit.Value(http.NewRequestWithContext(ctx, http.MethodGet, base+"/some/path?headers", nil))(t)
	request.Header.Set("X-Mark", "m")
	response := testkit.Value(http.DefaultClient.Do(request))(t)
	defer response.Body.Close()
	var got Answer
	testkit.Must(t, json.NewDecoder(response.Body).Decode(&got))
	if got.Pod != "p" || got.Namespace != "n" || got.Node != "k" || got.IP != "127.0.0.1" || got.Path != "/some/path" ||
		!strings.HasPrefix(got.Client, "127.0.0.1:") || got.Headers.Get("X-Mark") != "m" {
		t.Errorf("answer: %+v", got)
	}
	health := testkit.Value(http.Get(base + "/healthz"))(t)
	_ = health.Body.Close()
	if health.StatusCode != http.StatusOK {
		t.Errorf("healthz: %s", health.Status)
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("end: %v", err)
	}
}

// A server that was asked to end answers until nobody has asked for three seconds.
func TestServeUntilQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		listener := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		began := time.Now()
		done := make(chan error, 1)
		go func() { done <- serve(ctx, listener, Answer{}, 3*time.Second) }()
		get := func(path string) error {
			client := &http.Client{Transport: &http.Transport{
				DisableKeepAlives: true,
				DialContext:       func(context.Context, string, string) (net.Conn, error) { return listener.dial() },
			}}
			response, err := client.Get("http://echo" + path)
			if err != nil {
				return err
			}
			return response.Body.Close()
		}
		cancel()
		for range 10 {
			time.Sleep(2 * time.Second)
			if err := get("/"); err != nil {
				t.Fatalf("%s after it was asked to end: %v", time.Since(began), err)
			}
		}
		last := time.Now()
		for range 2 { // probes do not count
			time.Sleep(time.Second)
			testkit.NoError(t, get("/healthz"))
		}
		testkit.NoError(t, <-done)
		if quiet := time.Since(last); quiet != 3*time.Second {
			t.Errorf("it ended %s after the last request, want 3 s", quiet)
		}
	})
}

// pipes is a listener of connections in memory, which synctest knows.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   atomic.Bool
}

func (p *pipes) dial() (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	if p.once.CompareAndSwap(false, true) {
		close(p.closed)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8080} }
