// Package traffic counts the traffic of a node's WireGuard devices by ClusterIP, in nftables tables of its own.
package traffic

import (
	"bytes"
	"cmp"
	"net/netip"
	"slices"
	"sync"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

const (
	// maxAddresses bounds the ClusterIPs of each direction and family that the kernel counts at a time.
	maxAddresses = 4096
	maxReported  = 1000
)

// sample are the kernel's counts for each ClusterIP.
type sample map[netip.Addr]counts

type counts struct{ sent, received, connections uint64 }

// Counter counts the traffic of a node's WireGuard devices by ClusterIP: bytes to remote endpoints, bytes from them,
// and connections. Its methods are safe for concurrent use. It knows no Service: the broker does.
//
// The kernel counts. A table of nftables for each IP family has a set for each direction, with a counter for each
// ClusterIP to which the packet's connection was opened, as connection tracking knows it: kube-proxy has translated
// the packet before. A packet that neither leaves nor enters by a device of ours costs two comparisons of its
// interface's name, one that does a lookup in a set. The sets are bounded, and forget a ClusterIP that is idle for an
// hour. See docs/metrics.md, "Traffic of Services".
type Counter struct {
	mu sync.Mutex
	// last are the kernel's counts when last read, and total those since the Counter was made.
	last, total sample
}

// NewCounter makes a Counter. Read starts to count.
func NewCounter() *Counter {
	return &Counter{last: sample{}, total: sample{}}
}

// Read takes the kernel's counts, and has it count if it does not. It returns whether anything is other than before. It
// fails if nftables cannot be read or changed.
func (c *Counter) Read() (changed bool, err error) {
	now, err := read()
	if err != nil {
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.take(now), nil
}

// take adds the new part of a sample. The kernel forgets an idle ClusterIP, and counts from 0 when it comes again.
func (c *Counter) take(now sample) (changed bool) {
	for address, is := range now {
		was, before := c.last[address], c.total[address]
		total := before
		total.sent += grown(was.sent, is.sent)
		total.received += grown(was.received, is.received)
		total.connections += grown(was.connections, is.connections)
		c.total[address] = total
		changed = changed || total != before
	}
	for address := range c.total {
		if _, there := now[address]; !there {
			delete(c.total, address)
			changed = true
		}
	}
	c.last = now
	return changed
}

// grown is by how much a counter has grown that may have begun again.
func grown(was, is uint64) uint64 {
	if is < was {
		return is
	}
	return is - was
}

// Report returns the counts of the ClusterIPs with the most bytes, by address.
func (c *Counter) Report() []*semaphorev1.ServiceTraffic {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*semaphorev1.ServiceTraffic, 0, len(c.total))
	for address, n := range c.total {
		all = append(all, &semaphorev1.ServiceTraffic{Address: address.AsSlice(), SentBytes: n.sent,
			ReceivedBytes: n.received, Connections: n.connections})
	}
	if len(all) > maxReported {
		slices.SortFunc(all, func(a, b *semaphorev1.ServiceTraffic) int {
			return cmp.Or(cmp.Compare(b.SentBytes+b.ReceivedBytes, a.SentBytes+a.ReceivedBytes),
				bytes.Compare(a.Address, b.Address))
		})
		all = all[:maxReported]
	}
	slices.SortFunc(all, func(a, b *semaphorev1.ServiceTraffic) int { return bytes.Compare(a.Address, b.Address) })
	return all
}
