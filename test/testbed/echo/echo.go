// Package echo has servers for the pods of a testbed: an HTTP server that reports who answered and who asked, a TCP and
// UDP server that answers with a text, and the subset of socat that the conformance suite of the Multi-Cluster Services
// API uses.
package echo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// Answer is the response to every request except /healthz.
type Answer struct {
	// Pod, Namespace and Node say where the server runs. They come from the environment variables POD_NAME, POD_NAMESPACE
	// and NODE_NAME; the defaults are the host name and the namespace of the ServiceAccount. Node may be empty.
	Pod       string `json:"pod"`
	Namespace string `json:"namespace,omitempty"`
	Node      string `json:"node,omitempty"`
	// IP is the destination address of the request, as the server sees it.
	IP string `json:"ip"`
	// Client is the source address and port of the request, as the server sees it.
	Client string `json:"client"`
	Path   string `json:"path"`
	// Headers are the request headers, if the query has "headers".
	Headers http.Header `json:"headers,omitempty"`
}

// shutdownTime bounds the time for open requests when the server stops.
const shutdownTime = 5 * time.Second

// Serve answers requests on address (":8080") until ctx ends and, after that, no request has come for the time quiet:
// those who have not heard of the end yet are still answered. Then it finishes the open requests.
func Serve(ctx context.Context, address string, quiet time.Duration) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	return serve(ctx, listener, whoAmI(), quiet)
}

func serve(ctx context.Context, listener net.Listener, me Answer, quiet time.Duration) error {
	var last atomic.Int64 // when the last request came, in nanoseconds; probes do not count
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		last.Store(time.Now().UnixNano())
		answer := me
		answer.Client, answer.Path = r.RemoteAddr, r.URL.Path
		if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
			answer.IP, _, _ = net.SplitHostPort(local.String())
		}
		if r.URL.Query().Has("headers") {
			answer.Headers = r.Header
		}
		w.Header().Set("Content-Type", "application/json")
		// The client may have disconnected; that needs no report.
		_ = json.NewEncoder(w).Encode(answer)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("echo: %w", err)
	case <-ctx.Done():
	}
	last.Store(time.Now().UnixNano())
	for quiet > 0 {
		left := quiet - time.Since(time.Unix(0, last.Load()))
		if left <= 0 {
			break
		}
		time.Sleep(left)
	}
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	err := server.Shutdown(patience)
	if serveErr := <-ended; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	return err
}

func whoAmI() Answer {
	me := Answer{Pod: os.Getenv("POD_NAME"), Namespace: os.Getenv("POD_NAMESPACE"), Node: os.Getenv("NODE_NAME")}
	if me.Pod == "" {
		me.Pod, _ = os.Hostname()
	}
	if me.Namespace == "" {
		data, _ := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
		me.Namespace = strings.TrimSpace(string(data))
	}
	return me
}
