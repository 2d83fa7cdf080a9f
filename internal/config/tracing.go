package config

import (
	"net/url"
	"slices"
)

// Tracing configures the OpenTelemetry spans of changes, and the collector that receives them. Everything else comes
// from the environment variables that OpenTelemetry defines: OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE
// and so on.
type Tracing struct {
	// SamplingRatePerMillion is how many of a million changes are traced; 0 for none, which is off.
	SamplingRatePerMillion int `json:"samplingRatePerMillion"`
	// Endpoint is the collector's URL for OTLP/gRPC, http:// for no TLS; OTEL_EXPORTER_OTLP_ENDPOINT if empty.
	Endpoint string `json:"endpoint"`
}

func (t *Tracing) complete(p *problems, field string) {
	if t.SamplingRatePerMillion < 0 || t.SamplingRatePerMillion > 1_000_000 {
		p.add(field+".samplingRatePerMillion", "%d: use 1 to 1000000, which is every change, or 0 for off",
			t.SamplingRatePerMillion)
	}
	if t.Endpoint == "" {
		return
	}
	u, err := url.Parse(t.Endpoint)
	if err != nil || !slices.Contains([]string{"http", "https"}, u.Scheme) || u.Hostname() == "" || u.Port() == "" ||
		u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		// The message omits the value, which may contain a password.
		p.add(field+".endpoint", "use the collector's URL for OTLP/gRPC with its port and nothing more, such as "+
			"\"http://otel-collector.observability:4317\", or https:// with TLS; headers are in OTEL_EXPORTER_OTLP_HEADERS")
	}
	if t.SamplingRatePerMillion == 0 {
		p.add(field+".samplingRatePerMillion", "0, and endpoint names a collector: use 1 to 1000000, or take the endpoint "+
			"out")
	}
}
