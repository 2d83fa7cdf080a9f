// Package echo has servers for pods of a testbed: one of HTTP that says who answered and who asked, one of TCP and UDP
// that answers with a text, and what the conformance suite of the Multi-Cluster Services API asks of socat.
//
// It imports nothing of this module.
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
	"time"
)

// Answer is what the server says to any request but one for /healthz.
type Answer struct {
	// Pod, Namespace and Node are where the server runs: POD_NAME, POD_NAMESPACE and NODE_NAME of the environment, else
	// the host name and the namespace of the service account; Node may be empty.
	Pod       string `json:"pod"`
	Namespace string `json:"namespace,omitempty"`
	Node      string `json:"node,omitempty"`
	// IP is the address that the request came to, as the server sees it.
	IP string `json:"ip"`
	// Client is the address and port that the request came from, as the server sees it.
	Client string `json:"client"`
	Path   string `json:"path"`
	// Headers of the request, for one whose query has "headers".
	Headers http.Header `json:"headers,omitempty"`
}

// shutdownTime is how long requests that have begun may take when the server is to end.
const shutdownTime = 5 * time.Second

// Serve answers requests on address (":8080") until ctx ends, and then finishes those that have begun.
func Serve(ctx context.Context, address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	return serve(ctx, listener, whoAmI())
}

func serve(ctx context.Context, listener net.Listener, me Answer) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		answer := me
		answer.Client, answer.Path = r.RemoteAddr, r.URL.Path
		if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
			answer.IP, _, _ = net.SplitHostPort(local.String())
		}
		if r.URL.Query().Has("headers") {
			answer.Headers = r.Header
		}
		w.Header().Set("Content-Type", "application/json")
		// A client that has gone away gets no answer, and nobody needs to know.
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
