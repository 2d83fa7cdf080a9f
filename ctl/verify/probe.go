package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kube-semaphore/semaphore/internal/kube"
)

const Port = 8080

const maxBytes = 16 << 20

const pause = 200 * time.Millisecond

// wire is the server's answer: its name, and as many bytes as requested.
type wire struct {
	Answer
	Padding string `json:"padding,omitempty"`
}

// Serve answers requests on a listener until ctx ends. pod is its own. It fails if the listener does before.
func Serve(ctx context.Context, listener net.Listener, pod string) error {
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w, r, pod) }),
	}
	defer context.AfterFunc(ctx, func() { server.Close() })() // who asks now asks again
	if err := server.Serve(listener); ctx.Err() == nil {
		return err
	}
	return nil
}

func answer(w http.ResponseWriter, r *http.Request, pod string) {
	n, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxBytes))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	bytes, err := strconv.Atoi("0" + r.URL.Query().Get("bytes"))
	if err != nil || bytes > maxBytes {
		http.Error(w, "bytes: a number up to "+strconv.Itoa(maxBytes), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(wire{ // who has left needs no answer
		Answer:  Answer{Pod: pod, Client: r.RemoteAddr, Received: int(n)},
		Padding: strings.Repeat("x", bytes),
	})
}

// Ask asks until the outcome is the expected one, or the time is over. The outcome is that of the last attempt.
func Ask(ctx context.Context, q Question) Outcome {
	began := time.Now()
	for {
		attempt := time.Now()
		o := ask(ctx, q)
		o.Seconds, o.Total = time.Since(attempt).Seconds(), time.Since(began).Seconds()
		if o.Answered != q.Refused || time.Since(began) >= q.Within {
			return o
		}
		if kube.Sleep(ctx, pause) != nil {
			return o
		}
	}
}

func ask(ctx context.Context, q Question) (o Outcome) {
	ctx, cancel := context.WithTimeout(ctx, q.Attempt)
	defer cancel()
	var conn net.Conn
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (_ net.Conn, err error) {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return conn, err
		},
	}
	defer transport.CloseIdleConnections()
	url := q.URL
	if q.Bytes > 0 {
		url += "?bytes=" + strconv.Itoa(q.Bytes)
	}
	err := func() error {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, url,
			strings.NewReader(strings.Repeat("x", q.Bytes)))
		if err != nil {
			return err
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		o.PathMTU = pathMTU(conn) // the end of the body closes the connection
		var w wire
		if err := json.NewDecoder(io.LimitReader(response.Body, 2*maxBytes)).Decode(&w); err != nil {
			return fmt.Errorf("%s: %w", response.Status, err)
		}
		o.Answer = w.Answer
		if w.Received != q.Bytes || len(w.Padding) != q.Bytes {
			return fmt.Errorf("of %d bytes the server got %d, and %d came back", q.Bytes, w.Received, len(w.Padding))
		}
		return nil
	}()
	if err != nil {
		o.Reason, o.Error = reasonOf(err), err.Error()
		if errors.Is(err, context.DeadlineExceeded) { // its text has the method and the URL, which the report has, too
			o.Error = "timeout"
		}
	}
	o.Answered = err == nil
	return o
}

func reasonOf(err error) Reason {
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &dns):
		return NoName
	case errors.Is(err, syscall.ECONNREFUSED):
		return Closed
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return Unroutable
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return Timeout
	}
	return Other
}
