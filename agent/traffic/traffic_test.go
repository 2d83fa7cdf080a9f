package traffic

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

var a, b = netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00::1")

func report(c *Counter, of netip.Addr) [3]uint64 {
	for _, s := range c.Report() {
		if at, _ := netip.AddrFromSlice(s.Address); at == of {
			return [3]uint64{s.SentBytes, s.ReceivedBytes, s.Connections}
		}
	}
	return [3]uint64{}
}

// TestTake: the kernel's counts add up, also after it dropped an address, or another program deleted the table.
func TestTake(t *testing.T) {
	c := NewCounter()
	for i, step := range []struct {
		now     sample
		changed bool
		a, b    [3]uint64
	}{
		{sample{}, false, [3]uint64{}, [3]uint64{}},
		{sample{a: {100, 10, 1}, b: {5, 5, 1}}, true, [3]uint64{100, 10, 1}, [3]uint64{5, 5, 1}},
		{sample{a: {100, 10, 1}, b: {5, 5, 1}}, false, [3]uint64{100, 10, 1}, [3]uint64{5, 5, 1}},
		{sample{a: {150, 30, 2}, b: {5, 5, 1}}, true, [3]uint64{150, 30, 2}, [3]uint64{5, 5, 1}},
		// The table was deleted, and counts from zero.
		{sample{a: {7, 3, 1}, b: {5, 5, 1}}, true, [3]uint64{157, 33, 3}, [3]uint64{5, 5, 1}},
		// An idle address is dropped.
		{sample{a: {7, 3, 1}}, true, [3]uint64{157, 33, 3}, [3]uint64{}},
		{sample{a: {7, 3, 1}, b: {9, 0, 1}}, true, [3]uint64{157, 33, 3}, [3]uint64{9, 0, 1}},
	} {
		if changed := c.take(step.now); changed != step.changed || report(c, a) != step.a || report(c, b) != step.b {
			t.Errorf("step %d: changed %t, %v and %v; want %t, %v and %v", i, changed, report(c, a), report(c, b),
				step.changed, step.a, step.b)
		}
	}
}

// TestReportIsBounded: a report is bounded, and has the addresses with the most bytes.
func TestReportIsBounded(t *testing.T) {
	c, all := NewCounter(), sample{}
	for i := range maxAddresses {
		at := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(10<<24+i))))
		all[at] = counts{sent: uint64(i + 1), received: 1}
	}
	c.take(all)
	got := c.Report()
	least := slices.MinFunc(got, func(x, y *semaphorev1.ServiceTraffic) int { return int(x.SentBytes) - int(y.SentBytes) })
	if len(got) != maxReported || least.SentBytes != maxAddresses-maxReported+1 {
		t.Errorf("%d reported, the least has %d bytes", len(got), least.GetSentBytes())
	}
}
