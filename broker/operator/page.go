package operator

// A Page shows the live state of the mesh as this broker knows it, for a person behind a port-forward. It shows what
// semaphorectl status shows of this broker (internal/diagnose/mesh), and judges nothing.
//
// It only reads. It has no method that changes anything, and shows no credential and no secret. The listener is on
// loopback (listen.dashboard), and refuses host names other than loopback's, because the name of another site could
// resolve to it (DNS rebinding). The page loads nothing from elsewhere.
//
// Its cost is bounded: the state is read once for all readers, with a tenth of one core at most, and only while there
// is a reader, except for the lag every ten seconds. A slow reader loses states, and delays no other.

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/kube-semaphore/semaphore/internal/conns"
)

// The bounds of the listener and of its readers.
const (
	maxConnections = 64
	maxReaders     = 16
	writeTimeout   = 10 * time.Second
	// maxStream bounds the life of a stream; a browser opens another one.
	maxStream = time.Hour
	// fresh is the maximal age of the state that a new reader gets.
	fresh = 2 * time.Second
	// beatEvery is the interval at which a reader without a new state is sent a sign of life.
	beatEvery = 2 * time.Second
)

// Intervals of reading. least is the minimal time between two readings of the state, and details between two of the
// services and sets, which may be many.
const (
	least       = 500 * time.Millisecond
	details     = 5 * time.Second
	sampleEvery = 10 * time.Second
	// share of one core that reading may use.
	share = 10
)

//go:embed page
var files embed.FS

type Page struct {
	sources Sources

	mu      sync.Mutex
	readers int
	woken   chan struct{} // has room for one: a reader has come
	current *state
	changed chan struct{} // closed and replaced at each state
	lag     history

	// of the loop alone
	read      []Service
	sets      []Set
	moreRead  int
	moreSets  int
	detailsAt time.Time
}

type state struct {
	view []byte
	svg  []byte
	at   time.Time
}

func NewPage(sources Sources) *Page {
	return &Page{sources: sources, woken: make(chan struct{}, 1), changed: make(chan struct{})}
}

// Serve listens on an address of loopback until ctx ends. It fails if it cannot listen.
func (s *Page) Serve(ctx context.Context, address string, refused func()) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("dashboard listener: %w", err)
	}
	running, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() { s.run(running) })
	defer reading.Wait()
	defer cancel()
	srv := &http.Server{
		Handler: s, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return running },
	}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	limits := conns.Limits{All: maxConnections, Unproven: maxConnections}
	if err := srv.Serve(conns.New(limits, func(string) { refused() }).Listener(listener)); !errors.Is(err,
		http.ErrServerClosed) {
		return fmt.Errorf("dashboard listener: %w", err)
	}
	return nil
}

// run reads the state while there are readers, and samples the lag always.
func (s *Page) run(ctx context.Context) {
	sample := time.NewTicker(sampleEvery)
	defer sample.Stop()
	wait := time.NewTimer(0)
	defer wait.Stop()
	var notBefore time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-sample.C:
			s.sample()
		case <-s.woken:
			wait.Reset(time.Until(notBefore))
		case <-wait.C:
			if !s.watched() {
				continue // until a reader comes
			}
			began := time.Now()
			s.refresh(began)
			notBefore = began.Add(max(least, share*time.Since(began)))
			wait.Reset(time.Until(notBefore))
		}
	}
}

func (s *Page) watched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readers > 0
}

// headers are those of each response. The page may load only its own script, style and picture.
var headers = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; " +
		"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY",
	"Referrer-Policy":              "no-referrer",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Cache-Control":                "no-store",
}

var contentTypes = map[string]string{"/": "text/html; charset=utf-8", "/page.css": "text/css; charset=utf-8",
	"/page.js": "text/javascript; charset=utf-8"}

func (s *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for key, value := range headers {
		w.Header().Set(key, value)
	}
	if why := refusal(r); why != "" {
		http.Error(w, why, http.StatusForbidden)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "the dashboard only reads", http.StatusMethodNotAllowed)
		return
	}
	switch r.URL.Path {
	case "/", "/page.css", "/page.js":
		w.Header().Set("Content-Type", contentTypes[r.URL.Path])
		http.ServeFileFS(w, r, files, "page/"+cmp.Or(r.URL.Path[1:], "page.html"))
	case "/mesh.svg":
		s.picture(w, r)
	case "/state":
		s.stream(w, r)
	default:
		http.NotFound(w, r)
	}
}

// refusal returns why a request is refused: its host is no name of loopback, or a page of another site makes it. A
// person may follow a link to the page itself.
func refusal(r *http.Request) string {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	address, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if host != "localhost" && (err != nil || !address.IsLoopback()) {
		return "the dashboard answers at localhost, 127.0.0.1 and [::1] only"
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || u.Host != r.Host {
			return "the dashboard answers its own page only"
		}
	}
	if site := r.Header.Get("Sec-Fetch-Site"); (site == "cross-site" || site == "same-site") && r.URL.Path != "/" {
		return "the dashboard answers its own page only"
	}
	return ""
}

// enter counts a reader, and returns the function that ends it; false if there are too many.
func (s *Page) enter() (leave func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readers >= maxReaders {
		return nil, false
	}
	s.readers++
	select {
	case s.woken <- struct{}{}:
	default:
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.readers--
	}, true
}

// next waits for a state that is newer than last; nil when ctx ends, or at a beat.
func (s *Page) next(ctx context.Context, last *state, beat <-chan time.Time) *state {
	for {
		s.mu.Lock()
		now, changed := s.current, s.changed
		s.mu.Unlock()
		if now != nil && now != last && time.Since(now.at) < fresh {
			return now
		}
		select {
		case <-changed:
		case <-beat:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// stream sends each state as a server-sent event (https://html.spec.whatwg.org/multipage/server-sent-events.html). A
// reader may miss states between two writes. While there is no new state, because reading one takes long, beats show
// that the broker works: a page that receives neither may report that the broker does not answer.
func (s *Page) stream(w http.ResponseWriter, r *http.Request) {
	leave, ok := s.enter()
	if !ok {
		w.Header().Set("Retry-After", "30")
		http.Error(w, fmt.Sprintf("%d readers have the page open: close one", maxReaders), http.StatusServiceUnavailable)
		return
	}
	defer leave()
	ctx, cancel := context.WithTimeout(r.Context(), maxStream)
	defer cancel()
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Method == http.MethodHead {
		return
	}
	control := http.NewResponseController(w)
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	var last *state
	for {
		now := s.next(ctx, last, beat.C)
		if ctx.Err() != nil {
			return
		}
		if err := control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return
		}
		var out bytes.Buffer // JSON has no line end
		if now == nil {
			out.WriteString("event: beat\ndata: {}\n\n")
		} else {
			last = now
			beat.Reset(beatEvery)
			out.WriteString("data: ")
			out.Write(last.view)
			out.WriteString("\n\n")
		}
		if _, err := w.Write(out.Bytes()); err != nil {
			return
		}
		if err := control.Flush(); err != nil {
			return
		}
	}
}

func (s *Page) picture(w http.ResponseWriter, r *http.Request) {
	leave, ok := s.enter()
	if !ok {
		http.Error(w, "too many readers", http.StatusServiceUnavailable)
		return
	}
	defer leave()
	now := s.next(r.Context(), nil, nil)
	if now == nil {
		return
	}
	// It is an image with its own style, and must load nothing else.
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; sandbox")
	w.Header().Set("Content-Type", "image/svg+xml")
	_, _ = w.Write(now.svg) // the reader may have disconnected
}
