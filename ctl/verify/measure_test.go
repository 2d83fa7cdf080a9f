package verify

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/internal/finding"
)

// TestMeasure: each measurement has its own fields of the result, and one that fails has the reason alone.
func TestMeasure(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- ServeLoad(ctx, listener) }()
	path := Path(listener.Addr().String())
	const bytes, requests, times = "bytes ", "requests ", "times "
	for _, test := range []struct {
		m    Measurement
		want string
	}{
		{Measurement{Name: Bandwidth, Streams: 2}, bytes},
		{Measurement{Name: Requests, Streams: 2}, requests},
		{Measurement{Name: Latency}, times},
		{Measurement{Name: Latency, Streams: 1, Rate: 1 << 20}, bytes + times},
		{Measurement{Name: PodIP}, `"pod-ip" is no measurement`},
	} {
		test.m.While = 50 * time.Millisecond
		m := Measure(t.Context(), path, test.m)
		got := ""
		if m.BytesPerSecond > 0 {
			got += bytes
		}
		if m.RequestsPerSecond > 0 {
			got += requests
		}
		if 0 < m.P50 && m.P50 <= m.P99 {
			got += times
		}
		if got += m.Error; got != test.want || m.Streams != test.m.Streams {
			t.Errorf("%+v has %q: %+v", test.m, got, m)
		}
	}
	stop()
	must(t, <-served)
	if m := Measure(t.Context(), path, measurements[0]); !strings.Contains(m.Error, "refused") || m.BytesPerSecond > 0 {
		t.Errorf("without a server: %+v", m)
	}
}

// TestJudgeMeasured: results are printed with their units, a failed one names the port and the image, and what it left
// out is unchecked. The path between a cluster's own pods is no traffic between clusters.
func TestJudgeMeasured(t *testing.T) {
	for _, test := range []struct {
		name Name
		all  []Measured
		want string
	}{
		{Bandwidth, []Measured{{Streams: 1, BytesPerSecond: 2e8}, {Streams: 16, BytesPerSecond: 2.5e8}},
			"passed: n1 to n7: 1.60 Gbit/s with 1 stream; 2.00 Gbit/s with 16 streams"},
		{Latency, []Measured{{P50: 2e-4, P99: 1e-3}, {Streams: 1, BytesPerSecond: 2e8, P50: 2e-3, P99: 4e-3}},
			"passed: n1 to n7: idle p50 0.20, p99 1.00 ms; beside 1.60 Gbit/s p50 2.00, p99 4.00 ms"},
		{Requests, []Measured{{Streams: 16, RequestsPerSecond: 3500}},
			"passed: n1 to n7: 3500 a second, each on a new connection, from 16 clients"},
		{Bandwidth, []Measured{{Streams: 1, Error: "i/o timeout"}}, "failed: n1 to n7: i/o timeout"},
		{Latency, nil, "unchecked: a measurement before it failed"},
	} {
		c := JudgeMeasured(check(test.name), clientPod, serverPod, test.all)
		if got := string(c.Result) + ": " + c.Detail; got != test.want {
			t.Errorf("%s, want %s", got, test.want)
		}
		failed := c.Code == finding.PodUnreachable && strings.Contains(c.Fix, "c2: they must pass TCP port 8081") &&
			strings.Contains(c.Fix, "--image")
		if failed != (c.Result == Failed) || (len(c.Measured) > 0) != (c.Result == Passed) {
			t.Errorf("%+v", c)
		}
	}
	own := JudgeMeasured(Check{From: "c1", To: "c1", Name: Bandwidth}, clientPod, serverPod, []Measured{{Streams: 1}})
	if !strings.HasPrefix(own.Detail, "n1 to n7, without a tunnel: ") {
		t.Error(own.Detail)
	}
	if r := NewReport("x", []Cluster{{Name: "c1"}}, []Check{own}, 1); r.Well() {
		t.Errorf("%s", r.Verdict)
	}
}
