package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kube-semaphore/semaphore/internal/conns"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

// NewRegistry returns a part's registry of metrics, with those of the process.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "semaphore_build_info",
		Help:        "Always 1; the labels tell what runs.",
		ConstLabels: prometheus.Labels{"version": Version, "go": runtime.Version()},
	})
	build.Set(1)
	reg.MustRegister(httpRefused, build, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// httpRefused counts for the only HTTP listener of the process.
var httpRefused = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "semaphore_http_connections_refused_total",
	Help: "Connections to the HTTP listener that were closed because the limit was reached.",
})

// The limits of the HTTP listener: concurrent connections, and concurrent scrapes, each of which costs as much as there
// are series.
const (
	maxHTTPConnections = 256
	maxScrapes         = 4
	scrapeTimeout      = 30 * time.Second
)

type Pages struct {
	Metrics prometheus.Gatherer
	// Private, if not nil, are the metrics for clients that Trusted accepts, in place of Metrics. Other clients do not
	// get the reason why the process is not ready either.
	Private prometheus.Gatherer
	Trusted func(local, remote netip.Addr) bool
	// Ready returns why the process is not ready, nil if it is, and a note in either case, which may be empty.
	Ready func() (note string, err error)
	// Found returns all findings of the process, as its metrics count them; nil for a process without findings.
	Found func() []finding.Finding
}

// Serve serves the pages on address until ctx ends. It fails if it cannot listen, or the listener fails.
func (p Pages) Serve(ctx context.Context, address string) error {
	mux := http.NewServeMux()
	list := make(chan struct{}, maxScrapes)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		// It depends on no part: a kubelet that gets no answer here kills the process, which fixes nothing.
		fmt.Fprintln(w, "ok")
		if r.URL.Query().Has("verbose") {
			_, err := p.Ready()
			p.list(w, list, finding.Blocks(err), p.trusts(r))
		}
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		note, err := p.Ready()
		trusted, blocks := p.trusts(r), finding.Blocks(err)
		switch {
		case err != nil:
			line := codes(blocks)
			if trusted {
				line += ": " + err.Error()
			}
			http.Error(w, line, http.StatusServiceUnavailable)
		case note != "" && trusted:
			fmt.Fprintln(w, "ok: "+note)
		default:
			fmt.Fprintln(w, "ok")
		}
		if r.URL.Query().Has("verbose") {
			p.list(w, list, blocks, trusted)
		}
	})
	options := promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, Timeout: scrapeTimeout}
	open := promhttp.HandlerFor(p.Metrics, options)
	private := open
	if p.Private != nil {
		private = promhttp.HandlerFor(p.Private, options)
	}
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		if p.trusts(r) {
			private.ServeHTTP(w, r)
		} else {
			open.ServeHTTP(w, r)
		}
	})
	return serve(ctx, address, mux)
}

func codes(all []finding.Finding) string {
	var out []string
	for _, f := range all {
		if code := string(f.Code); !slices.Contains(out, code) {
			out = append(out, code)
		}
	}
	return strings.Join(out, ", ")
}

// list writes a line for each finding of the process. Those that make it not ready begin with [-], the others with [!].
// Only trusted clients get the texts, which may have addresses, and only those of findings that make the process not
// ready: semaphorectl status shows the others.
func (p Pages) list(w io.Writer, busy chan struct{}, blocks []finding.Finding, trusted bool) {
	select {
	case busy <- struct{}{}: // it costs as much as a scrape
		defer func() { <-busy }()
	default:
		fmt.Fprintln(w, "too many ask for the list at once")
		return
	}
	var all []finding.Finding
	if p.Found != nil {
		all = p.Found()
	}
	same := func(a finding.Finding) func(finding.Finding) bool {
		return func(b finding.Finding) bool { return a.Code == b.Code && a.Cluster == b.Cluster }
	}
	for _, f := range blocks { // such as one that began since
		if !slices.ContainsFunc(all, same(f)) {
			all = append(all, f)
		}
	}
	for _, f := range finding.Merge(all) {
		mark, text := "[!]", ""
		if i := slices.IndexFunc(blocks, same(f)); i >= 0 {
			mark = "[-]"
			if trusted && len(blocks[i].First) > 0 {
				text = ": " + blocks[i].First[0]
			}
		}
		cluster := ""
		if f.Cluster != "" {
			cluster = " of " + f.Cluster
		}
		fmt.Fprintf(w, "%s%s%s (%s, %d)%s\n", mark, f.Code, cluster, f.Code.Level(), f.Count, text)
	}
}

// trusts reports whether a request comes from a client that may see everything. It uses the address of the connection,
// and no header.
func (p Pages) trusts(r *http.Request) bool {
	if p.Private == nil {
		return true
	}
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	var local netip.Addr
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		local = a.AddrPort().Addr().Unmap().WithZone("")
	}
	return p.Trusted(local, remote.Addr().Unmap().WithZone(""))
}

// serveProfiles serves net/http/pprof until ctx ends. The address should be on loopback: a profile reveals much of a
// process.
func serveProfiles(ctx context.Context, address string) error {
	if address == "" {
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return serve(ctx, address, mux)
}

func serve(ctx context.Context, address string, handler http.Handler) error {
	srv := &http.Server{
		Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 16 << 10,
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("HTTP listener: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	// Clients do not authenticate here, so a kubelet's probe gets room at the cost of the client with the most
	// connections.
	limits := conns.Limits{All: maxHTTPConnections, Unproven: maxHTTPConnections}
	if err := srv.Serve(conns.New(limits, func(string) { httpRefused.Inc() }).Listener(listener)); !errors.Is(err,
		http.ErrServerClosed) {
		return fmt.Errorf("HTTP listener: %w", err)
	}
	return nil
}
