package verify

import (
	"context"
	"net"
	"testing"
	"time"
)

// TestLoad measures the loopback interface. A bandwidth counts what arrived, within its rate, a latency and a request
// come from messages that were answered, and a server that goes away ends a measurement with an error.
func TestLoad(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- ServeLoad(ctx, listener) }()
	p := Path(listener.Addr().String())
	const while = 200 * time.Millisecond
	began := time.Now()
	if n, err := p.Bandwidth(t.Context(), 3, while, 0); err != nil || n*time.Since(began).Seconds() < 3*chunk {
		t.Errorf("without a limit %.0f bytes per second, %v", n, err)
	}
	const rate = 4 << 20
	// The last write of each stream may be above the rate.
	if n, err := p.Bandwidth(t.Context(), 2, while, rate); err != nil || n == 0 || n > 2*(rate+2*chunk/while.Seconds()) {
		t.Errorf("at %d bytes per second %.0f, %v", 2*rate, n, err)
	}
	if all, err := p.Latency(t.Context(), while); err != nil || len(all) == 0 || all[0] <= 0 {
		t.Errorf("latencies %v, %v", all, err)
	}
	if n, err := p.Requests(t.Context(), 4, while); err != nil || n <= 0 {
		t.Errorf("%.0f requests, %v", n, err)
	}
	// Where connecting takes all of the time, something is measured nevertheless: no bandwidth is 0 that nobody tried.
	if n, err := p.Bandwidth(t.Context(), 2, 0, 0); err != nil || n <= 0 {
		t.Errorf("in no time %.0f bytes per second, %v", n, err)
	}
	if n, err := p.Requests(t.Context(), 2, 0); err != nil || n <= 0 {
		t.Errorf("in no time %.0f requests, %v", n, err)
	}

	ended := make(chan error, 1)
	go func() {
		_, err := p.Latency(t.Context(), time.Hour)
		ended <- err
	}()
	time.Sleep(while)
	stop()
	if err := <-ended; err == nil {
		t.Error("the server has ended, and the measurement has not failed")
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if _, err := p.Requests(t.Context(), 1, while); err == nil {
		t.Error("requests without a server")
	}
	ctx, stop = context.WithCancel(t.Context())
	stop()
	if _, err := p.Bandwidth(ctx, 1, time.Hour, 0); err == nil {
		t.Error("an interrupted measurement")
	}
}
