package identity

import (
	"crypto/x509"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

var (
	notBefore = prometheus.NewDesc("semaphore_certificate_not_before_timestamp_seconds",
		"Unix time from which a certificate is valid: see semaphore_certificate_not_after_timestamp_seconds.",
		[]string{"type", "cluster"}, nil)
	notAfter = prometheus.NewDesc("semaphore_certificate_not_after_timestamp_seconds",
		"Unix time until which a certificate is valid: of type own, the part's; of type root, that root of a cluster which "+
			"is valid longest, for the own cluster and those whose RemoteCluster has a trustBundle. Absent for one that "+
			"cannot be read.", []string{"type", "cluster"}, nil)
)

// lifetimes collects until when the certificates of a source are valid.
type lifetimes struct {
	source  *Source
	cluster string
}

// Expiry returns the collector of the validity of a part's own certificate and of roots. cluster is the own one.
func Expiry(source *Source, cluster string) prometheus.Collector { return &lifetimes{source, cluster} }

func (l *lifetimes) Describe(ch chan<- *prometheus.Desc) { ch <- notBefore; ch <- notAfter }

func (l *lifetimes) Collect(ch chan<- prometheus.Metric) {
	send := func(cert *x509.Certificate, kind, cluster string) {
		for desc, at := range map[*prometheus.Desc]int64{notBefore: cert.NotBefore.Unix(), notAfter: cert.NotAfter.Unix()} {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(at), kind, cluster)
		}
	}
	if svid, err := l.source.backend.GetX509SVID(); err == nil {
		send(svid.Certificates[0], "own", l.cluster)
	}
	l.source.mu.Lock()
	clusters := map[string]bool{l.cluster: true}
	for cluster := range l.source.given {
		clusters[cluster] = true
	}
	l.source.mu.Unlock()
	for _, cluster := range slices.Sorted(maps.Keys(clusters)) {
		td, err := spiffeid.TrustDomainFromString(cluster)
		if err != nil {
			continue
		}
		bundle, err := l.source.GetX509BundleForTrustDomain(td)
		if err != nil || bundle.Empty() {
			continue
		}
		send(slices.MaxFunc(bundle.X509Authorities(), func(a, b *x509.Certificate) int {
			return a.NotAfter.Compare(b.NotAfter)
		}), "root", cluster)
	}
}
