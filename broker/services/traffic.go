package services

// Traffic sums by Service what agents count by ClusterIP: bytes to and from remote endpoints, and connections.
//
// It receives the reports of agents, each with all counters of the agent, and stores the sums. Its size is
// bounded by the number of the broker's Services, and for each node by the limit of a report.

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// maxAddresses bounds the ClusterIPs of one report. Others are ignored.
	maxAddresses = 1000
	// maxShown bounds the Services of a status.
	maxShown = 100
	// current is how long the rate of a report is valid: agents with traffic report every 30 s.
	current = 75 * time.Second
	// leastPeriod is the least time between two reports from which a rate is computed.
	leastPeriod = 5 * time.Second
	// maxCount bounds the counters of an agent, and each sum, so that none overflows.
	maxCount = 1 << 62
)

// ServiceNames looks up Services of the broker.
type ServiceNames interface {
	// ServiceOf returns the name of the Service with a ClusterIP; empty for none of the broker's.
	ServiceOf(ip netip.Addr) string
	ServiceExists(name string) bool
}

// index has the names of Services by ClusterIP.
type index map[netip.Addr]string

// replace replaces the ClusterIPs of a Service; either may be nil.
func (x index) replace(name string, was, is *corev1.Service) {
	for _, ip := range clusterIPs(was) {
		if x[ip] == name {
			delete(x, ip)
		}
	}
	for _, ip := range clusterIPs(is) {
		x[ip] = name
	}
}

func clusterIPs(s *corev1.Service) (all []netip.Addr) {
	if s == nil {
		return nil
	}
	for _, text := range s.Spec.ClusterIPs {
		if ip, err := netip.ParseAddr(text); err == nil { // "None" for a headless Service
			all = append(all, ip)
		}
	}
	return all
}

// counts are bytes to remote endpoints and from them, and connections.
type counts struct{ sent, received, connections uint64 }

func (c *counts) add(o counts) {
	c.sent = min(c.sent+o.sent, maxCount)
	c.received = min(c.received+o.received, maxCount)
	c.connections = min(c.connections+o.connections, maxCount)
}

// since returns the difference to an earlier count. The counter may have restarted between them.
func (c counts) since(was counts) counts {
	grown := func(was, is uint64) uint64 {
		if is < was {
			return is
		}
		return is - was
	}
	return counts{grown(was.sent, c.sent), grown(was.received, c.received), grown(was.connections, c.connections)}
}

// node is the last report of one node.
type node struct {
	at   time.Time
	last map[netip.Addr]counts
	// grown is the increase of each Service in the last report, over period.
	grown  map[string]counts
	period time.Duration
}

// Traffic stores the sums. Its methods are safe for concurrent use.
type Traffic struct {
	namespace string
	services  ServiceNames

	mu     sync.Mutex
	nodes  map[string]*node
	totals map[string]*counts
}

// NewTraffic makes empty sums of Services in a namespace.
func NewTraffic(namespace string, services ServiceNames) *Traffic {
	return &Traffic{namespace: namespace, services: services, nodes: map[string]*node{}, totals: map[string]*counts{}}
}

// Report adds the counters of a node's agent. The first report of a node adds nothing: its counts may be in the sums
// already.
func (b *Traffic) Report(name string, all []*semaphorev1.ServiceTraffic, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.nodes[name]
	if n == nil && len(all) == 0 {
		// The report has no counter yet: all counts that follow are new.
		b.nodes[name] = &node{at: now, last: map[netip.Addr]counts{}}
		return
	}
	first := n == nil
	if first {
		n = &node{last: map[netip.Addr]counts{}}
		b.nodes[name] = n
	}
	grown, reported := map[string]counts{}, map[netip.Addr]bool{}
	for _, t := range all[:min(len(all), maxAddresses)] {
		ip, ok := netip.AddrFromSlice(t.GetAddress())
		if !ok || reported[ip] {
			continue
		}
		service := b.services.ServiceOf(ip)
		if service == "" {
			continue
		}
		reported[ip] = true
		is := counts{min(t.GetSentBytes(), maxCount), min(t.GetReceivedBytes(), maxCount), min(t.GetConnections(), maxCount)}
		more := is.since(n.last[ip])
		n.last[ip] = is
		if first || more == (counts{}) {
			continue
		}
		sum := grown[service]
		sum.add(more)
		grown[service] = sum
		if b.totals[service] == nil {
			b.totals[service] = &counts{}
		}
		b.totals[service].add(more)
	}
	if len(n.last) > 2*maxAddresses {
		for ip := range n.last {
			if !reported[ip] {
				delete(n.last, ip)
			}
		}
	}
	if period := now.Sub(n.at); first || period >= leastPeriod {
		n.at, n.period, n.grown = now, period, grown
	}
}

// Forget drops a node that was deleted. Its counts remain in the sums.
func (b *Traffic) Forget(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.nodes, name)
}

// sums returns the totals by Service, and drops those of Services that are deleted. The caller must hold mu.
func (b *Traffic) sums() map[string]*counts {
	for service := range b.totals {
		if !b.services.ServiceExists(service) {
			delete(b.totals, service)
		}
	}
	return b.totals
}

// Status returns the traffic of the busiest Services, and the number of all that had any.
func (b *Traffic) Status(now time.Time) (all []*semaphorev1.ServiceTrafficStatus, total int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	byName := map[string]*semaphorev1.ServiceTrafficStatus{}
	for service, t := range b.sums() {
		s := &semaphorev1.ServiceTrafficStatus{Namespace: b.namespace, Service: service, SentBytes: t.sent,
			ReceivedBytes: t.received, Connections: t.connections}
		byName[service] = s
		all = append(all, s)
	}
	for _, n := range b.nodes {
		if now.Sub(n.at) > current || n.period <= 0 {
			continue
		}
		for service, t := range n.grown {
			if s := byName[service]; s != nil {
				s.Nodes++
				s.SentPerSecond += uint64(float64(t.sent) / n.period.Seconds())
				s.ReceivedPerSecond += uint64(float64(t.received) / n.period.Seconds())
			}
		}
	}
	slices.SortFunc(all, func(a, b *semaphorev1.ServiceTrafficStatus) int {
		return cmp.Or(cmp.Compare(b.SentPerSecond+b.ReceivedPerSecond, a.SentPerSecond+a.ReceivedPerSecond),
			cmp.Compare(b.SentBytes+b.ReceivedBytes, a.SentBytes+a.ReceivedBytes), cmp.Compare(a.Service, b.Service))
	})
	return all[:min(len(all), maxShown)], len(all)
}

var (
	bytesDesc = prometheus.NewDesc("semaphore_broker_service_traffic_bytes_total",
		"Bytes of IP packets between the own nodes and remote endpoints of a Service, through the tunnels, by direction: "+
			"out "+
			"and in. Only with serviceTraffic in the agents' configuration.",
		[]string{"namespace", "service", "direction"}, nil)
	connectionsDesc = prometheus.NewDesc("semaphore_broker_service_connections_total",
		"Connections from the own nodes to remote endpoints of a Service, through the tunnels; for UDP, flows. Only with "+
			"serviceTraffic in the agents' configuration.",
		[]string{"namespace", "service"}, nil)
)

func (b *Traffic) Describe(ch chan<- *prometheus.Desc) {
	ch <- bytesDesc
	ch <- connectionsDesc
}

// Collect implements prometheus.Collector. It sends nothing while it holds the lock, because a scrape may be slow.
func (b *Traffic) Collect(ch chan<- prometheus.Metric) {
	var out []prometheus.Metric
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		out = append(out, prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...))
	}
	b.mu.Lock()
	for service, t := range b.sums() {
		counter(bytesDesc, t.sent, b.namespace, service, "out")
		counter(bytesDesc, t.received, b.namespace, service, "in")
		counter(connectionsDesc, t.connections, b.namespace, service)
	}
	b.mu.Unlock()
	for _, metric := range out {
		ch <- metric
	}
}
