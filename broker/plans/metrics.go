package plans

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/internal/config"
)

var peerProblems = prometheus.NewDesc("semaphore_broker_peer_problems",
	"What nodes of a remote claim (keys, pod CIDRs, addresses) and do not have, as it is another's, or lack.", []string{"cluster"}, nil)

// Describe implements prometheus.Collector.
func (p *Plans) Describe(ch chan<- *prometheus.Desc) { ch <- peerProblems }

// Collect implements prometheus.Collector.
func (p *Plans) Collect(ch chan<- prometheus.Metric) {
	if !p.features.Has(config.Encryption) {
		return
	}
	counts := map[string]int{}
	p.mu.RLock()
	for cluster := range p.configured {
		if cluster != p.own { // of whose nodes nothing is asked
			counts[cluster] = 0 // so that 0 can be seen
		}
	}
	for cluster := range p.mesh.Problems() {
		counts[cluster]++
	}
	p.mu.RUnlock()
	for cluster, n := range counts {
		ch <- prometheus.MustNewConstMetric(peerProblems, prometheus.GaugeValue, float64(n), cluster)
	}
}
