package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

// listen runs one of the listeners until the test ends, and returns its URL.
func listen(t *testing.T, run func(ctx context.Context, address string) error) string {
	t.Helper()
	address := loopback.Address(t)
	t.Cleanup(func() { // after the end of run
		http.DefaultClient.CloseIdleConnections()
		if conn, err := net.Dial("tcp", address); err == nil {
			conn.Close()
			t.Error("somebody listens after the end")
		}
	})
	testkit.Run(t, func(ctx context.Context) error { return run(ctx, address) })
	testkit.Eventually(t, time.Minute, "somebody listens", func() error {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err
	})
	return "http://" + address
}

func get(t *testing.T, url string) (code int, body string) {
	t.Helper()
	resp := testkit.Value(http.Get(url))(t)
	defer resp.Body.Close()
	return resp.StatusCode, string(testkit.Value(io.ReadAll(resp.Body))(t))
}

// TestPrivatePages: a client that is not trusted gets only the public metrics, and no reason why a process is not
// ready; headers have no effect.
func TestPrivatePages(t *testing.T) {
	secret := prometheus.NewRegistry()
	secret.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "secret"}))
	var trusted atomic.Bool
	url := listen(t, func(ctx context.Context, address string) error {
		return Pages{
			Metrics: NewRegistry(), Private: secret,
			Trusted: func(local, remote netip.Addr) bool {
				if local != netip.MustParseAddr("127.0.0.1") || remote != local {
					t.Errorf("a request from %s to %s", remote, local)
				}
				return trusted.Load()
			},
			Ready: func() (string, error) { return "", errors.New("no route to 10.2.0.0/16") },
		}.Serve(ctx, address)
	})
	ask := func(path string) string {
		request := testkit.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil))(t)
		request.Header.Set("X-Forwarded-For", "127.0.0.1")
		request.Header.Set("Forwarded", "for=127.0.0.1")
		resp := testkit.Value(http.DefaultClient.Do(request))(t)
		defer resp.Body.Close()
		return string(testkit.Value(io.ReadAll(resp.Body))(t))
	}
	if body := ask("/metrics"); strings.Contains(body, "secret") || !strings.Contains(body, "semaphore_build_info") {
		t.Errorf("a stranger reads %.200q", body)
	}
	if body := ask("/readyz"); body != "NotReady\n" {
		t.Errorf("a stranger gets %q", body)
	}
	if body := ask("/readyz?verbose"); body != "NotReady\n[-]NotReady (error, 1)\n" {
		t.Errorf("a stranger gets %q", body)
	}
	trusted.Store(true)
	if body := ask("/metrics"); !strings.Contains(body, "secret 0") {
		t.Errorf("who is trusted reads %.200q", body)
	}
	if body := ask("/readyz"); body != "NotReady: no route to 10.2.0.0/16\n" {
		t.Errorf("who is trusted gets %q", body)
	}
}

func TestHTTP(t *testing.T) {
	var problem, note atomic.Value
	note.Store("")
	problem.Store("standing by: the lease is held by broker-1")
	url := listen(t, func(ctx context.Context, address string) error {
		return Pages{Metrics: NewRegistry(), Ready: func() (string, error) {
			if p := problem.Load().(string); p != "" {
				return "", errors.New(p)
			}
			return note.Load().(string), nil
		}}.Serve(ctx, address)
	})
	if code, body := get(t, url+"/healthz"); code != 200 || body != "ok\n" {
		t.Errorf("/healthz: %d %q", code, body)
	}
	if code, body := get(t, url+"/readyz"); code != 503 || !strings.HasPrefix(body, "NotReady: standing by") {
		t.Errorf("/readyz: %d %q; want the reason", code, body)
	}
	problem.Store("")
	if code, body := get(t, url+"/readyz"); code != 200 || body != "ok\n" {
		t.Errorf("/readyz: %d %q", code, body)
	}
	note.Store("on what was last heard")
	if code, body := get(t, url+"/readyz"); code != 200 || body != "ok: on what was last heard\n" {
		t.Errorf("/readyz: %d %q", code, body)
	}
	code, body := get(t, url+"/metrics")
	for _, want := range []string{`semaphore_build_info{go="go`, `version="development"} 1`, "go_goroutines ",
		"process_resident_memory_bytes "} {
		if code != 200 || !strings.Contains(body, want) {
			t.Errorf("/metrics: %d, lacks %q", code, want)
		}
	}
	// A profile reveals much of a process, so clients that may scrape do not get it.
	for _, path := range []string{"/", "/debug/pprof/", "/debug/pprof/heap"} {
		if code, _ := get(t, url+path); code != 404 {
			t.Errorf("%s: %d; want 404", path, code)
		}
	}
	resp := testkit.Value(http.Post(url+"/healthz", "text/plain", nil))(t)
	resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %s", resp.Status)
	}
}

// TestCodes: /readyz lists the codes of what makes the process not ready, and details on request. /healthz answers 200
// whatever is wrong, and computes findings only on request.
func TestCodes(t *testing.T) {
	var asked atomic.Int32
	key := finding.New(finding.KeyFileProblem, "c2", 1, "the file is damaged")
	stale := finding.New(finding.Stale, "c3", 1, "c3 stale 4m")
	var err atomic.Value
	err.Store(finding.Because(errors.New("device wireguard.c2: the file is damaged"), key))
	url := listen(t, func(ctx context.Context, address string) error {
		return Pages{Metrics: NewRegistry(), Ready: func() (string, error) {
			asked.Add(1)
			return "standby", err.Load().(error)
		}, Found: func() []finding.Finding {
			return []finding.Finding{stale, key, finding.New(finding.NotReady, "", 1, "as before")}
		}}.Serve(ctx, address)
	})
	if code, body := get(t, url+"/healthz"); code != 200 || body != "ok\n" || asked.Load() != 0 {
		t.Errorf("/healthz: %d %q, after %d questions", code, body, asked.Load())
	}
	const first = "KeyFileProblem, NotReady: device wireguard.c2: the file is damaged\n"
	const list = `[-]KeyFileProblem of c2 (error, 1): the file is damaged
[-]NotReady (error, 1): device wireguard.c2: the file is damaged
[!]Stale of c3 (error, 1)
`
	for path, want := range map[string]string{"/readyz": first, "/readyz?verbose": first + list} {
		if code, body := get(t, url+path); code != 503 || body != want {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	if code, body := get(t, url+"/healthz?verbose"); code != 200 || body != "ok\n"+list {
		t.Errorf("/healthz?verbose: %d %q", code, body)
	}
}

// TestListsAtOnce: concurrent requests for the list do not cost more than scrapes may.
func TestListsAtOnce(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	url := listen(t, func(ctx context.Context, address string) error {
		return Pages{Metrics: NewRegistry(), Ready: func() (string, error) { return "", nil },
			Found: func() []finding.Finding {
				begun <- struct{}{}
				<-end
				return nil
			}}.Serve(ctx, address)
	})
	bodies := make(chan string, maxScrapes)
	for range maxScrapes {
		go func() {
			_, body := get(t, url+"/readyz?verbose")
			bodies <- body
		}()
		<-begun
	}
	if code, body := get(t, url+"/readyz?verbose"); code != 200 || body != "ok\ntoo many ask for the list at once\n" {
		t.Errorf("one more: %d %q", code, body)
	}
	close(end)
	for range maxScrapes {
		if body := <-bodies; body != "ok\n" {
			t.Errorf("%q", body)
		}
	}
}

func TestProfiling(t *testing.T) {
	if err := serveProfiles(t.Context(), ""); err != nil {
		t.Errorf("off: %v", err)
	}
	url := listen(t, serveProfiles)
	if code, body := get(t, url+"/debug/pprof/goroutine?debug=1"); code != 200 ||
		!strings.Contains(body, "goroutine profile:") {
		t.Errorf("%d %.100q", code, body)
	}
	if code, _ := get(t, url+"/metrics"); code != 404 {
		t.Errorf("/metrics: %d", code)
	}
}

func TestAddressTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	defer l.Close()
	err = Pages{Metrics: NewRegistry()}.Serve(t.Context(), l.Addr().String())
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint(l.Addr())) {
		t.Errorf("%v; want an error that names %s", err, l.Addr())
	}
}

func TestHTTPAfterTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (Pages{Metrics: NewRegistry()}).Serve(ctx, "127.0.0.1:0"); err != nil {
		t.Error(err)
	}
}

// TestLongProfile: a trace that takes longer than the read timeout is complete, because a server of net/http suspends
// that timeout while it answers. A client that does not complete the header is disconnected.
func TestLongProfile(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes 12 s")
	}
	url := listen(t, serveProfiles)
	slow := testkit.Value(net.Dial("tcp", strings.TrimPrefix(url, "http://")))(t)
	defer slow.Close()
	testkit.Value(slow.Write([]byte("GET /debug/pprof/ HTTP/1.1\r\n")))(t)
	began := time.Now()
	if code, body := get(t, url+"/debug/pprof/trace?seconds=12"); code != 200 || len(body) == 0 {
		t.Errorf("%d, %d bytes", code, len(body))
	}
	if took := time.Since(began); took < 12*time.Second {
		t.Errorf("a trace of 12 s took %s", took)
	}
	testkit.Must(t, slow.SetReadDeadline(time.Now().Add(time.Second)))
	if _, err := io.ReadAll(slow); err != nil {
		t.Errorf("who sends no end of the header stays connected: %v", err)
	}
}
