package operator

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unicode"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/broker/services"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/diagnose/mesh"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

func TestMain(m *testing.M) {
	loopback.Enter()
	goleak.VerifyTestMain(m)
}

var must = testkit.Must

// broker is the status of one with a link and a tunnel to each of these.
func broker(remotes ...string) *semaphorev1.GetStatusResponse {
	now := time.Now()
	s := &semaphorev1.GetStatusResponse{Part: "broker", Cluster: "c1", Ready: true, Now: timestamppb.New(now),
		StartedAt: timestamppb.New(now.Add(-time.Hour)), SoftwareVersion: "v1",
		Nodes: []*semaphorev1.NodeStatus{{Node: "n1", Attached: true, Since: timestamppb.New(now.Add(-time.Minute))}}}
	for _, name := range remotes {
		s.Links = append(s.Links, &semaphorev1.LinkStatus{Cluster: name, Connected: true, LastHeard: timestamppb.New(now),
			Kinds: []*semaphorev1.KindStatus{{Kind: semaphorev1.Kind_KIND_SERVICE, Objects: 3,
				LastHeard: timestamppb.New(now), MedianPropagation: durationpb.New(12 * time.Millisecond)}}})
		s.Tunnels = append(s.Tunnels, &semaphorev1.TunnelsStatus{Cluster: name, Nodes: 1, NodesTalking: 1,
			LastHandshake: timestamppb.New(now), SentPerSecond: 2_500_000})
	}
	return s
}

func judged(s *semaphorev1.GetStatusResponse) *semaphorev1.GetStatusResponse {
	finding.Judge(s)
	return s
}

// serve starts a server, and returns its address.
func serve(t *testing.T, sources Sources) string {
	t.Helper()
	address, _ := serveUntil(t, sources)
	return address
}

// serveUntil starts a server that can be stopped before the test ends.
func serveUntil(t *testing.T, sources Sources) (address string, stop func()) {
	t.Helper()
	if sources.Recent == nil {
		sources.Recent = func(int) []*semaphorev1.Event { return nil }
	}
	address = loopback.Address(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- NewPage(sources).Serve(ctx, address, func() {}) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	testkit.Eventually(t, time.Minute, "the dashboard listens", func() error {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	return address, stop
}

func ask(t *testing.T, method, address, path string, header map[string]string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, nil)
	must(t, err)
	for key, value := range header {
		if key == "Host" {
			request.Host = value
		}
		request.Header.Set(key, value)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	must(t, err)
	t.Cleanup(func() { response.Body.Close() })
	return response
}

// reader reads states of a stream.
type reader struct {
	t     *testing.T
	lines *bufio.Reader
	// beats came, and enough of them are what next returns nil for.
	beats, enough int
}

func read(t *testing.T, address string) *reader {
	t.Helper()
	response := ask(t, http.MethodGet, address, "/state", nil)
	if response.StatusCode != http.StatusOK {
		t.Fatal(response.Status)
	}
	return &reader{t: t, lines: bufio.NewReader(response.Body)}
}

func (r *reader) next() *View {
	r.t.Helper()
	for beat := false; ; {
		line, err := r.lines.ReadString('\n')
		must(r.t, err)
		if strings.HasPrefix(line, "event: beat") {
			r.beats++
			beat = true
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			if beat {
				beat = false
				if r.beats == r.enough {
					return nil
				}
				continue
			}
			v := &View{}
			must(r.t, json.Unmarshal([]byte(data), v))
			return v
		}
	}
}

// TestAttacks: nothing but the page's own requests to names of loopback are answered, no method changes anything, and
// each answer has the headers that keep a browser from loading or running anything else.
func TestAttacks(t *testing.T) {
	address := serve(t, Sources{Status: func() *semaphorev1.GetStatusResponse { return judged(broker("c2")) }})
	_, port, err := net.SplitHostPort(address)
	must(t, err)
	for _, test := range []struct {
		name, method, path string
		header             map[string]string
		want               int
	}{
		{"the page", "GET", "/", nil, 200},
		{"the page by name", "GET", "/", map[string]string{"Host": "localhost:" + port}, 200},
		{"the page by IPv6", "GET", "/", map[string]string{"Host": "[::1]:" + port}, 200},
		{"a forwarded port", "GET", "/", map[string]string{"Host": "127.0.0.1:50000"}, 200},
		{"its own script", "GET", "/page.js", map[string]string{"Sec-Fetch-Site": "same-origin"}, 200},
		{"its own stream", "HEAD", "/state", map[string]string{"Origin": "http://" + address}, 200},
		{"a link from elsewhere", "GET", "/", map[string]string{"Sec-Fetch-Site": "cross-site"}, 200},

		{"a rebound name", "GET", "/", map[string]string{"Host": "evil.example:" + port}, 403},
		{"a rebound name's state", "GET", "/state", map[string]string{"Host": "evil.example"}, 403},
		{"a name that begins like loopback", "GET", "/state", map[string]string{"Host": "127.0.0.1.evil.example"}, 403},
		{"a name that begins like localhost", "GET", "/state", map[string]string{"Host": "localhost.evil.example"}, 403},
		{"an address that is not loopback", "GET", "/state", map[string]string{"Host": "192.0.2.1:" + port}, 403},
		{"an empty host", "GET", "/state", map[string]string{"Host": ":" + port}, 403},
		{"a page from elsewhere", "GET", "/state", map[string]string{"Origin": "http://evil.example"}, 403},
		{"a page of another port", "GET", "/state", map[string]string{"Origin": "http://127.0.0.1:1"}, 403},
		{"a page without origin", "GET", "/state", map[string]string{"Origin": "null"}, 403},
		{"an element of another page", "GET", "/mesh.svg", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		{"an element of another port's page", "GET", "/state", map[string]string{"Sec-Fetch-Site": "same-site"}, 403},
		{"POST", "POST", "/", nil, 405},
		{"PUT", "PUT", "/state", nil, 405},
		{"DELETE", "DELETE", "/", nil, 405},
		{"PATCH", "PATCH", "/", nil, 405},
		{"OPTIONS", "OPTIONS", "/", nil, 405},
		{"another file", "GET", "/../dashboard.go", nil, 404},
		{"a file of the page by another name", "GET", "/page.html", nil, 404},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := ask(t, test.method, address, test.path, test.header)
			if r.StatusCode != test.want {
				t.Errorf("%s; want %d", r.Status, test.want)
			}
			csp := r.Header.Get("Content-Security-Policy")
			for _, directive := range []string{"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'",
				"form-action 'none'"} {
				if !strings.Contains(csp, directive) {
					t.Errorf("the policy %q lacks %s", csp, directive)
				}
			}
			if strings.Contains(csp, "unsafe") || r.Header.Get("X-Content-Type-Options") != "nosniff" ||
				r.Header.Get("Access-Control-Allow-Origin") != "" || r.Header.Get("Cache-Control") != "no-store" ||
				r.Header.Get("X-Frame-Options") != "DENY" || r.Header.Get("Cross-Origin-Resource-Policy") != "same-origin" {
				t.Errorf("headers: %v", r.Header)
			}
		})
	}
}

// TestThePageLoadsNothingFromOtherHosts: the page names no other host, has no inline script or style, and its script
// makes no HTML or code of a string.
func TestThePageLoadsNothingFromOtherHosts(t *testing.T) {
	banned := map[string]*regexp.Regexp{
		"page.html": regexp.MustCompile(`(?i)https?:|//|<style|style=|\son\w+=|javascript:|<script>|<script [^>]*>[^<]`),
		"page.css":  regexp.MustCompile(`(?i)url\(|@import|https?:`),
		"page.js": regexp.MustCompile(`innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|DOMParser|` +
			`createContextualFragment|srcdoc|setTimeout\("|import\(|fetch\(|XMLHttpRequest|\.style\b|https?://(?:[^w]|w[^w])`),
	}
	for name, pattern := range banned {
		data, err := fs.ReadFile(files, "page/"+name)
		must(t, err)
		if found := pattern.FindAllString(string(data), -1); len(found) > 0 {
			t.Errorf("%s has %q", name, found)
		}
	}
	entries, err := fs.ReadDir(files, "page")
	must(t, err)
	if len(entries) != len(banned) {
		t.Errorf("%d files, %d are examined", len(entries), len(banned))
	}
}

// TestStream: a reader gets the state at once and each change within 2 s, and what it gets is what semaphorectl status
// joins of the same answer.
func TestStream(t *testing.T) {
	var silent atomic.Bool
	recorder := debug.NewRecorder("broker", "c1", "")
	recorder.Record(debug.Event{Source: "c2", Object: "service shop/echo", Action: "create"})
	var last atomic.Pointer[semaphorev1.GetStatusResponse]
	address := serve(t, Sources{
		Status: func() *semaphorev1.GetStatusResponse {
			s := broker("c2", "c3")
			if silent.Load() {
				s.Tunnels[1].NodesSilent, s.SilentPairsTotal = 1, 1
				s.SilentPairs = []*semaphorev1.SilentPair{{Node: "n1", Cluster: "c3", RemoteNode: "m1", Since: s.GetNow()}}
			}
			last.Store(judged(s))
			return s
		},
		Services: func() []services.Described {
			return []services.Described{{Namespace: "pay", Name: "web", Service: "gl-pay-web"},
				{Namespace: "shop", Name: "echo", Service: "c2-shop-echo",
					Own:      &choice.OwnName{Use: "failover", Clusters: []string{"c2"}, All: 1, Enough: "1"},
					Clusters: []services.DescribedCluster{{Cluster: "c2", Endpoints: 3, Ready: 2, InUse: true}}}}
		},
		Sets: func() []*semaphorev1.PolicySet {
			return []*semaphorev1.PolicySet{{Cluster: "c2", Namespace: "shop", Name: "web", Pods: []*semaphorev1.SetPod{{}, {}}}}
		},
		Recent: recorder.Recent,
	})
	r := read(t, address)
	v := r.next()
	if !v.Mesh.Well || len(v.Mesh.Links) != 2 || v.LinkStates[0] != "well" || v.Nodes[0].Name != "n1" ||
		// Those that lead to others come first.
		v.Services[0].OwnName != "own name: failover, served by c2: 0 of 1 ready here, 1 is enough" ||
		v.Services[0].Clusters[0].Ready != 2 || v.Sets[0].Pods != 2 || v.Events[0].Object != "service shop/echo" {
		t.Fatalf("%+v", v)
	}
	silent.Store(true)
	first := v.Picture
	for shown := 1; v.Mesh.Well; shown++ {
		if v = r.next(); shown > 2 { // the first may have been read before
			t.Errorf("state %d after a tunnel is silent does not show it", shown-1)
		}
	}
	if v.Mesh.Links[0].From != "c3" || v.LinkStates[0] != "error" || v.LinkStates[1] != "well" || v.Picture == first {
		t.Errorf("%+v %v", v.Mesh.Links, v.LinkStates)
	}
	want := mesh.Join([]mesh.Facts{{Parts: []*semaphorev1.GetStatusResponse{last.Load()}}})
	if v.Mesh.Verdict != want.Verdict || len(v.Mesh.Findings) != len(want.Findings) ||
		v.Mesh.Findings[0].Command != want.Findings[0].Command {
		t.Errorf("%q; status says %q", v.Mesh.Verdict, want.Verdict)
	}
	picture, err := io.ReadAll(ask(t, http.MethodGet, address, "/mesh.svg", nil).Body)
	must(t, err)
	if !bytes.Contains(picture, []byte(`class="edge error"`)) || !bytes.HasPrefix(picture, []byte("<svg ")) {
		t.Errorf("the drawing: %s", picture)
	}
}

// TestSlowReader: one that never reads and more than 16 neither delay another reader nor make the state be read more
// often, and nobody reads it when the last one is away.
func TestSlowReader(t *testing.T) {
	var readings atomic.Int64
	address := serve(t, Sources{Status: func() *semaphorev1.GetStatusResponse {
		readings.Add(1)
		names := make([]string, 200)
		for i := range names {
			names[i] = fmt.Sprintf("c%d%s", i, strings.Repeat("n", 200))
		}
		return judged(broker(names...))
	}})
	r := read(t, address)
	three := func() time.Duration {
		began, before := time.Now(), readings.Load()
		for range 3 {
			r.next()
		}
		took := time.Since(began)
		if n := readings.Load() - before; n > int64(took/least)+1 {
			t.Errorf("%d readings in %s for %d readers", n, took, maxReaders)
		}
		return took
	}
	alone := three()
	// With segments of this size the kernel has room for less than one state.
	small := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) {
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, 536),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096))
		})
		return errors.Join(failed, err)
	}}
	var idle []net.Conn
	another := func() {
		conn, err := small.Dial("tcp", address)
		must(t, err)
		_, err = fmt.Fprintf(conn, "GET /state HTTP/1.1\r\nHost: localhost\r\n\r\n")
		must(t, err)
		idle = append(idle, conn)
	}
	for range maxReaders - 1 {
		another()
	}
	testkit.Eventually(t, time.Minute, "there is no room for one more", func() error {
		if got := ask(t, http.MethodHead, address, "/state", nil); got.StatusCode != http.StatusServiceUnavailable {
			another() // on a slow machine the first one may be cut before the last one enters
			return fmt.Errorf("reader %d: %s", len(idle)+1, got.Status)
		}
		return nil
	})
	if beside := three(); beside > 5*alone { // one of them would delay it by writeTimeout
		t.Errorf("3 states took %s beside readers that never read, and %s without these", beside, alone)
	}
	for _, conn := range idle {
		must(t, conn.Close())
	}
	// The test's own readers end with it; those that were cut make room.
	testkit.Eventually(t, time.Minute, "there is room again", func() error {
		if got := ask(t, http.MethodHead, address, "/state", nil); got.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", got.Status)
		}
		return nil
	})
}

// TestSlowStatus: while reading the state takes long, a reader is sent that the broker lives; then it gets the state,
// and how long it waits for the next one.
func TestSlowStatus(t *testing.T) {
	var slow atomic.Bool
	begun, release := make(chan time.Time, 1), make(chan struct{})
	address := serve(t, Sources{Status: func() *semaphorev1.GetStatusResponse {
		if slow.CompareAndSwap(true, false) {
			begun <- time.Now()
			<-release
		}
		return judged(broker("c2"))
	}})
	r := read(t, address)
	if v := r.next(); v.Every < least.Seconds() {
		t.Errorf("the next state is to come in %v s", v.Every)
	}
	slow.Store(true)
	r.enough = r.beats + 3
	for r.next() != nil { // those that were read before
	}
	took := time.Since(<-begun)
	close(release)
	if v := r.next(); v.Every < share*took.Seconds() {
		t.Errorf("a reading took %s, and the next state is to come in %v s", took, v.Every)
	}
}

// TestWithoutReadersTheStateIsReadRarely: without a reader the state is read for the lag only, once in ten seconds.
func TestWithoutReadersTheStateIsReadRarely(t *testing.T) {
	var readings atomic.Int64
	serve(t, Sources{Status: func() *semaphorev1.GetStatusResponse {
		readings.Add(1)
		return judged(broker("c2"))
	}})
	time.Sleep(3 * time.Second)
	if n := readings.Load(); n > 0 {
		t.Errorf("%d readings for nobody", n)
	}
}

// TestBounds: of 5,000 nodes, 10,000 services and sets, 100 remotes with hostile names and what they say, a state has
// 512 KiB at most, says how much it leaves out, and has no character that is not printable.
func TestBounds(t *testing.T) {
	hostile := "x\x1b[2J\u202e</script><img src=x onerror=alert(1)>\xff" + strings.Repeat("y", 2000)
	var remotes []string
	for i := range 100 {
		remotes = append(remotes, fmt.Sprintf("c%d%s", i, hostile))
	}
	status := broker(remotes...)
	for i := range 5000 {
		status.Nodes = append(status.Nodes, &semaphorev1.NodeStatus{Node: fmt.Sprintf("n%d%s", i, hostile)})
	}
	offered := make([]services.Described, 10_000)
	sets := make([]*semaphorev1.PolicySet, 10_000)
	for i := range offered {
		offered[i] = services.Described{Namespace: hostile, Name: hostile, Service: hostile}
		for range 100 {
			offered[i].Clusters = append(offered[i].Clusters, services.DescribedCluster{Cluster: hostile})
		}
		sets[i] = &semaphorev1.PolicySet{Cluster: hostile, Namespace: hostile, Name: hostile, Problem: hostile}
	}
	events := make([]*semaphorev1.Event, maxEvents)
	for i := range events {
		events[i] = &semaphorev1.Event{Object: hostile, Detail: hostile, Source: hostile, Action: hostile}
	}
	s := NewPage(Sources{Status: func() *semaphorev1.GetStatusResponse { return judged(status) },
		Services: func() []services.Described { return offered }, Sets: func() []*semaphorev1.PolicySet { return sets },
		Recent: func(int) []*semaphorev1.Event { return events }})
	links := mesh.Join([]mesh.Facts{{Parts: []*semaphorev1.GetStatusResponse{judged(broker(remotes...))}}}).Links
	for range 400 {
		s.lag.add(links)
	}
	s.refresh(time.Now())
	data := s.current.view
	if len(data) > maxView {
		t.Errorf("%d bytes", len(data))
	}
	v := &View{}
	must(t, json.Unmarshal(data, v))
	if len(v.Nodes)+v.More["nodes"] != 5001 || len(v.Services)+v.More["services"] != 10_000 ||
		len(v.Sets)+v.More["sets"] != 10_000 || len(v.Mesh.Links)+v.More["links"] != 100 ||
		len(v.Lag)+v.More["lag"] != 100 || len(v.LinkStates) != len(v.Mesh.Links) {
		t.Errorf("rows and what is left out: %d nodes, %d services, %d sets, %d links; %v", len(v.Nodes), len(v.Services),
			len(v.Sets), len(v.Mesh.Links), v.More)
	}
	if strings.ContainsFunc(string(data), func(r rune) bool { return !unicode.IsPrint(r) }) ||
		bytes.Contains(data, []byte(`\u202e`)) || bytes.Contains(data, []byte(`\u001b`)) {
		t.Error("a state has characters that are not printable")
	}
	if len(s.current.svg) > 128<<10 {
		t.Errorf("the drawing has %d bytes", len(s.current.svg))
	}
}

// TestHistory: an hour of samples of each remote is kept, and nothing of one that is no longer configured.
func TestHistory(t *testing.T) {
	h := &history{}
	for i := range 500 {
		links := []mesh.Link{{From: "c2", Lag: "x", LagSeconds: float64(i)}}
		if i < 400 {
			links = append(links, mesh.Link{From: "c3"})
		}
		h.add(links)
	}
	got, more := h.series()
	if len(got) != 1 || more != 0 || len(got[0].Seconds) != samples || got[0].Seconds[0] != 500-samples ||
		got[0].Seconds[samples-1] != 499 {
		t.Errorf("%d series, %d more: %v", len(got), more, got)
	}
}
