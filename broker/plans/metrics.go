package plans

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/broker/mirror"
	"github.com/kube-semaphore/semaphore/internal/config"
)

var peerProblems = prometheus.NewDesc("semaphore_broker_peer_problems",
	"What nodes of a remote claim (keys, pod CIDRs, addresses) and do not have, as it is another's, or lack.", []string{"cluster"}, nil)

var serviceProblems = prometheus.NewDesc("semaphore_broker_service_problems",
	"Services of a remote that are not mirrored, or not as they say, by reason: TooLong and NameTaken (the name that a mirror or global service would have), Settings (its global service has another cluster's), Hostname (another cluster's pod has the same name in its global service).",
	[]string{"cluster", "reason"}, nil)

// Describe implements prometheus.Collector.
func (p *Plans) Describe(ch chan<- *prometheus.Desc) {
	ch <- peerProblems
	ch <- heldPeersDesc
	ch <- nodeClaimsDesc
	ch <- serviceProblems
}

// Collect implements prometheus.Collector.
func (p *Plans) Collect(ch chan<- prometheus.Metric) {
	if p.features.Has(config.Encryption) {
		p.collectPeers(ch)
		p.collectStanding(ch)
	}
	if p.features.Has(config.Services) {
		p.collectServices(ch)
	}
}

func (p *Plans) collectServices(ch chan<- prometheus.Metric) {
	type series struct{ cluster, reason string }
	counts := map[series]int{}
	for cluster := range p.configured {
		of := p.serviceProblems.Of(cluster)
		for _, code := range mirror.Codes {
			counts[series{cluster, code}] = of.Counts[code]
		}
	}
	for s, n := range counts {
		ch <- prometheus.MustNewConstMetric(serviceProblems, prometheus.GaugeValue, float64(n), s.cluster, s.reason)
	}
}

func (p *Plans) collectPeers(ch chan<- prometheus.Metric) {
	counts := map[string]int{}
	for cluster := range p.configured {
		if cluster != p.own { // of whose nodes nothing is asked
			counts[cluster] = p.peerProblems.Of(cluster).Counts[""]
		}
	}
	for cluster, n := range counts {
		ch <- prometheus.MustNewConstMetric(peerProblems, prometheus.GaugeValue, float64(n), cluster)
	}
}
