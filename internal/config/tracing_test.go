package config

import (
	"fmt"
	"strings"
	"testing"
)

// TestTracing: errors name the field and a valid value, and never contain a URL, which may have a password.
func TestTracing(t *testing.T) {
	const (
		endpoint = "tracing.endpoint: use the collector's URL for OTLP/gRPC with its port"
		rate     = "tracing.samplingRatePerMillion: "
	)
	for _, c := range []struct{ tracing, want string }{
		{"{}", ""},
		{"{samplingRatePerMillion: 0}", ""},
		{"{samplingRatePerMillion: 1}", ""},
		{"{samplingRatePerMillion: 1000000, endpoint: 'http://otel-collector.observability:4317'}", ""},
		{"{samplingRatePerMillion: 1, endpoint: 'https://[2001:db8::1]:4317'}", ""},
		{"{samplingRatePerMillion: -1}", rate + "-1: use 1 to 1000000"},
		{"{samplingRatePerMillion: 1000001}", rate + "1000001: use 1 to 1000000"},
		{"{samplingRatePerMillion: 0.5}", "samplingRatePerMillion"},
		{"{endpoint: 'http://collector:4317'}", rate + "0, and endpoint names a collector"},
		{"{samplingRatePerMillion: 1, endpoint: 'collector:4317'}", endpoint},
		{"{samplingRatePerMillion: 1, endpoint: '127.0.0.1:4317'}", endpoint},
		{"{samplingRatePerMillion: 1, endpoint: 'grpc://collector:4317'}", endpoint},
		{"{samplingRatePerMillion: 1, endpoint: 'http://collector'}", endpoint},
		{"{samplingRatePerMillion: 1, endpoint: 'http://:4317'}", endpoint},
		{"{samplingRatePerMillion: 1, endpoint: 'http://collector:port'}", endpoint},
		{"{samplingRatePerMillion: 1, endpoint: 'http://collector:4317/v1/traces'}", endpoint},
		{"{samplingRatePerMillion: 1, endpoint: 'http://collector:4317?x=y'}", endpoint},
		{"{samplingRatePerMillion: 1, endpoint: 'http://user:hunter2@collector:4317'}", endpoint},
		{"{rate: 1}", `unknown field "tracing.rate"`},
	} {
		text := fmt.Sprintf("cluster: c1\nlocalSubnets: [10.1.0.0/16]\ntracing: %s\n", c.tracing)
		_, err := Parse[Broker]([]byte(text))
		_, ofExporter := Parse[Exporter]([]byte(strings.Replace(text, "localSubnets: [10.1.0.0/16]\n", "", 1)))
		for _, err := range []error{err, ofExporter} {
			switch {
			case c.want == "" && err == nil:
			case c.want == "" || err == nil || !strings.Contains(err.Error(), c.want) ||
				strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "\n"):
				t.Errorf("%s: %v; want %q", c.tracing, err, c.want)
			}
		}
	}
}
