package paths

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

func TestMain(m *testing.M) { nodetest.Main(m) }

// must ends the test on an error.
var must = testkit.Must

func TestMessages(t *testing.T) {
	out := make([]byte, answerSize)
	ask := make([]byte, 1472)
	encodeProbe(ask, kindProbe, 77)
	if n := probeAnswer(out, ask); n != answerSize {
		t.Fatalf("an answer of %d bytes", n)
	}
	if id, size, err := arrived(out); id != 77 || size != 1472 || err != nil {
		t.Errorf("id %d, size %d, %v", id, size, err)
	}
	small := make([]byte, smallest-1)
	encodeProbe(small, kindProbe, 1)
	other := bytes.Clone(ask)
	other[4]++
	for name, b := range map[string][]byte{
		"none": nil, "an answer": out, "a small one": small, "of another version": other,
		"of something else": make([]byte, 100), "cut off": ask[:10],
	} {
		if n := probeAnswer(make([]byte, answerSize), b); n != 0 {
			t.Errorf("%s has an answer of %d bytes", name, n)
		}
	}
	if _, _, err := arrived(ask); err == nil {
		t.Error("a probe is taken for an answer")
	}
}

func FuzzMessages(f *testing.F) {
	ask := make([]byte, smallest)
	encodeProbe(ask, kindProbe, 5)
	f.Add(ask)
	f.Fuzz(func(t *testing.T, b []byte) {
		out := make([]byte, answerSize)
		n := probeAnswer(out, b)
		if n > 0 && n >= len(b) {
			t.Errorf("an answer of %d bytes to %d: it must never be more", n, len(b))
		}
		if n > 0 {
			if id, size, err := arrived(out); err != nil || size != len(b) || id == 0 && b[15] != 0 {
				t.Errorf("%d %d %v", id, size, err)
			}
		}
		_, _, _ = arrived(b)
	})
}

func TestOnLoopback(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", ":0"} {
		r, err := NewResponder(t.Context(), address, func(at netip.Addr) bool { return at.IsLoopback() && !at.Is4In6() })
		if err != nil && address == "[::1]:0" {
			continue // the machine has no IPv6
		}
		must(t, err)
		testkit.Run(t, r.Run)
		host := netip.MustParseAddr("127.0.0.1")
		if address == "[::1]:0" {
			host = netip.IPv6Loopback()
		}
		if address == ":0" {
			host = netip.MustParseAddr("127.0.0.5") // an answer from 127.0.0.1 would come from another address
		}
		got, err := MeasurePath(t.Context(), netip.AddrPortFrom(host, r.port()), 1280, 8940)
		must(t, err)
		if !got.Answered || got.Carries != 8940 || got.RoundTrip <= 0 {
			t.Errorf("%s: %+v", address, got)
		}
	}
}

func TestProbesWithoutAnswers(t *testing.T) {
	strangers, err := NewResponder(t.Context(), "127.0.0.1:0", func(netip.Addr) bool { return false })
	must(t, err)
	limited, err := NewResponder(t.Context(), "127.0.0.1:0", func(netip.Addr) bool { return true })
	must(t, err)
	limited.limit.SetBurst(0)
	for _, r := range []*Responder{limited, strangers} {
		testkit.Run(t, r.Run)
		at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), r.port())
		if got, err := MeasurePath(t.Context(), at, 1280, 1440); got.Answered || err != nil {
			t.Errorf("%+v %v", got, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := MeasurePath(ctx, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), strangers.port()), 1280,
		1440); err != context.Canceled {
		t.Errorf("%v", err)
	}
	if _, err := MeasurePath(t.Context(), netip.MustParseAddrPort("127.0.0.1:9"), 1441, 1440); err == nil {
		t.Error("nothing to measure is no error")
	}
}

// TestRoundTrip: the time of a round trip is that of a datagram and its answer, and not of the measurement.
func TestRoundTrip(t *testing.T) {
	const away = 60 * time.Millisecond
	far, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	ended := make(chan struct{})
	var answering sync.WaitGroup
	go func() {
		defer close(ended)
		for {
			b := make([]byte, largestData)
			n, from, err := far.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			answering.Add(1)
			time.AfterFunc(away, func() {
				defer answering.Done()
				out := make([]byte, answerSize)
				probeAnswer(out, b[:n])
				_, _ = far.WriteToUDPAddrPort(out, from)
			})
		}
	}()
	began := time.Now()
	got, err := MeasurePath(t.Context(), far.LocalAddr().(*net.UDPAddr).AddrPort(), 1280, 1440)
	took := time.Since(began)
	must(t, err)
	// It is asked whether the node is there, and then for sizes: two round trips at least.
	if !got.Answered || got.RoundTrip < away || got.RoundTrip > took/2 {
		t.Errorf("%+v of a node that is %s away, after %s", got, away, took)
	}
	must(t, far.Close())
	<-ended
	answering.Wait()
}

// TestForgedAnswers: answers are ignored if they are for sizes that were not requested, or lack the id.
func TestForgedAnswers(t *testing.T) {
	forger, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b, out := make([]byte, largestData), make([]byte, answerSize)
		for {
			n, from, err := forger.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			if n == smallest {
				probeAnswer(out, b[:n]) // it is there
				_, _ = forger.WriteToUDPAddrPort(out, from)
				continue
			}
			id, _ := decodeProbe(b[:n], kindProbe)
			for _, forged := range []struct {
				id   uint64
				size int
			}{{id + 1, n}, {id, n + 1}, {id, 1 << 20}, {0, n}} {
				encodeProbe(out, kindAnswer, forged.id)
				out[17], out[18], out[19] = byte(forged.size>>16), byte(forged.size>>8), byte(forged.size)
				_, _ = forger.WriteToUDPAddrPort(out, from)
			}
		}
	}()
	t.Cleanup(func() { forger.Close(); <-ended })
	got, err := MeasurePath(t.Context(), forger.LocalAddr().(*net.UDPAddr).AddrPort(), 1280, 1440)
	if !got.Answered || got.Carries != 0 || err != nil {
		t.Errorf("%+v %v", got, err)
	}
}

// TestStrangersUseUpNothing: whatever strangers and one known sender send, the others get their answers. The memory of
// senders has a bound.
func TestStrangersUseUpNothing(t *testing.T) {
	stranger, greedy, other := netip.MustParseAddr("192.0.2.66"), netip.MustParseAddr("192.0.2.1"),
		netip.MustParseAddr("192.0.2.2")
	r := &Responder{known: func(a netip.Addr) bool { return a != stranger }, senders: map[netip.Addr]*probeSender{},
		limit: rate.NewLimiter(answersPerSecond, answersAtOnce)}
	now := time.Unix(1_000_000, 0)
	answers := map[netip.Addr]int{}
	for range 60 { // seconds, with 5,000 datagrams each of the first two and one of the last
		for range 5_000 {
			for _, from := range []netip.Addr{stranger, greedy} {
				if r.allow(from, now) {
					answers[from]++
				}
			}
		}
		if r.allow(other, now) {
			answers[other]++
		}
		now = now.Add(time.Second)
	}
	if most := answersAtOnceToOne + 60*answersPerSecondToOne; answers[stranger] != 0 || answers[greedy] > most ||
		answers[other] != 60 {
		t.Errorf("answers %v; want none to the stranger, %d at most to the greedy one, and 60 to the other", answers, most)
	}
	many := 0
	for i := range 10_000 {
		if r.allow(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), now) {
			many++
		}
	}
	if many == 0 || many > answersAtOnce {
		t.Errorf("%d answers at once to many; want %d at most", many, answersAtOnce)
	}
	if r.allow(other, now.Add(forgetSenderAfter)); len(r.senders) != 1 {
		t.Errorf("%d senders are remembered after they were silent", len(r.senders))
	}
}
