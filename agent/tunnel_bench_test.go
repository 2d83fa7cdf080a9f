package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
)

// path is a way from a pod to another, which echoes datagrams and takes streams.
type path struct {
	from     *netns.Namespace // nil for this node
	datagram *net.UDPConn
	turns    map[string][]float64
}

// streamPort is the port that takes streams: it says how many bytes came.
const streamPort = 8

func (p *path) in(t testing.TB, f func() error) {
	t.Helper()
	if p.from == nil {
		must(t, f())
		return
	}
	must(t, p.from.Do(f))
}

// begin opens the path between the pods 10.1.1.1 and 10.2.1.1, in a namespace; to serves streams until the test ends.
func (p *path) begin(t testing.TB, to *netns.Namespace) {
	t.Helper()
	p.in(t, func() (err error) {
		p.datagram, err = net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(podAddress)},
			&net.UDPAddr{IP: net.IPv4(10, 2, 1, 1), Port: 7})
		return err
	})
	listener, err := to.Listen(t.Context(), "tcp", fmt.Sprint("10.2.1.1:", streamPort))
	must(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			n, _ := io.Copy(io.Discard, c)
			_, _ = c.Write(binary.BigEndian.AppendUint64(nil, uint64(n)))
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { p.datagram.Close(); listener.Close(); <-ended })
}

// turn measures the path once.
func (p *path) turn(t testing.TB) {
	t.Helper()
	const while = 300 * time.Millisecond
	add := func(unit string, value float64) { p.turns[unit] = append(p.turns[unit], value) }
	var times []time.Duration
	buffer := make([]byte, 64)
	for began := time.Now(); time.Since(began) < while; {
		sent := time.Now()
		_, _ = p.datagram.Write(buffer)
		_ = p.datagram.SetReadDeadline(sent.Add(nodetest.Patience(while)))
		if _, err := p.datagram.Read(buffer); err != nil {
			t.Fatal("a datagram did not come back: ", err)
		}
		times = append(times, time.Since(sent))
	}
	slices.Sort(times)
	add("p50-µs", float64(times[len(times)/2].Nanoseconds())/1000)
	add("packets/s", 2*returned(p.datagram, while))
	var c *net.TCPConn
	p.in(t, func() (err error) {
		c, err = net.DialTCP("tcp", &net.TCPAddr{IP: net.ParseIP(podAddress)}, &net.TCPAddr{IP: net.IPv4(10, 2, 1, 1),
			Port: streamPort})
		return err
	})
	defer c.Close()
	// A stream takes a while to be as fast as it can.
	began, some := time.Now(), make([]byte, 1<<16)
	for time.Since(began) < max(while, nodetest.Patience(while)/3) {
		_, err := c.Write(some)
		must(t, err)
	}
	must(t, c.CloseWrite())
	var n uint64
	must(t, binary.Read(c, binary.BigEndian, &n))
	add("Mbit/s", 8*float64(n)/1e6/time.Since(began).Seconds())
}

func (p *path) quartile(unit string) float64 { return figure.BetterQuartile(unit, p.turns[unit]) }

// apart makes two namespaces, as this node and that of c2 are, with a device each that the library alone programs; or
// with none, and the plain path.
func apart(b *testing.B, number, mtu int) (p *path, to *netns.Namespace) {
	b.Helper()
	var names [2]string
	var ends [2]*netns.Namespace
	var keys [2]wgtypes.Key
	for i := range names {
		names[i] = fmt.Sprintf("apart%d-%d", number, i)
		var err error
		ends[i], err = netns.Create(names[i])
		must(b, err)
		keys[i], err = wgtypes.GeneratePrivateKey()
		must(b, err)
	}
	ip(b, "-n "+names[0]+" link add eth0 type veth peer name eth0 netns "+names[1])
	for i, name := range names {
		ip(b, fmt.Sprintf("-n %s addr add 192.0.2.%d/24 dev eth0", name, i+1))
		ip(b, fmt.Sprintf("-n %s link set eth0 up", name))
		ip(b, fmt.Sprintf("-n %s link set lo up", name))
		ip(b, fmt.Sprintf("-n %s addr add 10.%d.1.1/32 dev lo", name, i+1))
	}
	for i, name := range names {
		other := fmt.Sprintf("10.%d.0.0/16", 2-i)
		if mtu == 0 {
			ip(b, fmt.Sprintf("-n %s route add %s via 192.0.2.%d", name, other, 2-i))
			continue
		}
		device, port, allowed := fmt.Sprintf("wireguard.b%d", i), 51820, netip.MustParsePrefix(other)
		_, subnet, err := net.ParseCIDR(other)
		must(b, err)
		peer := wgtypes.PeerConfig{PublicKey: keys[1-i].PublicKey(), AllowedIPs: []net.IPNet{*subnet},
			Endpoint: &net.UDPAddr{IP: net.IPv4(192, 0, 2, byte(2-i)), Port: port}}
		var h *kernel.Host
		must(b, ends[i].Do(func() (err error) {
			if h, err = kernel.NewHost(nodetest.Backend(), "", kernel.DefaultRoutingTable()); err != nil {
				return err
			}
			return errors.Join(h.Create(b.Context(), device, device, mtu),
				h.Configure(device, wgtypes.Config{PrivateKey: &keys[i], ListenPort: &port, Peers: []wgtypes.PeerConfig{peer}}),
				h.SetLink(device, device, mtu, true), h.AddRoute(device, allowed, netip.Addr{}))
		}))
		b.Cleanup(func() { must(b, ends[i].Do(func() error { return h.Delete(device) })); h.Close() })
	}
	echo(b, ends[1], "10.2.1.1:7")
	return &path{from: ends[0]}, ends[1]
}

// BenchmarkTunnel measures a tunnel that an agent has made, and guards, beside a device that the library alone
// programs and the path without a device, by turns, on the kernel's WireGuard where there is one; then with 5,000 peers
// more. make test-kernel runs it in the emulated machine.
func BenchmarkTunnel(b *testing.B) {
	nodetest.Bench(b, func(b *testing.B) {
		slog.SetDefault(slog.New(slog.DiscardHandler))
		broker, _, r, _ := connect(b)
		through := &path{}
		through.begin(b, r.Namespace)
		bare, to := apart(b, 1, deviceOn(b, newHost(b), device).MTU)
		bare.begin(b, to)
		plain, to := apart(b, 2, 0)
		plain.begin(b, to)
		all := []*path{through, bare, plain}
		for range b.N {
			for _, peers := range []int{1, 5001} {
				for some := range slices.Chunk(others(peers-1), 2000) { // a message has at most 1 MiB
					broker.program(b, some...)
				}
				takeTurns(b, fmt.Sprintf("peers-%d-", peers), all)
			}
		}
		figure.WithoutTime(b)
	})
}

// takeTurns has a tunnel, a bare device and the plain path take turns, and reports the first.
func takeTurns(b *testing.B, with string, all []*path) {
	for _, p := range all {
		p.turns = map[string][]float64{}
	}
	for i := range 15 {
		for j := range all {
			all[(i+j)%len(all)].turn(b)
		}
	}
	through, bare, plain := all[0], all[1], all[2]
	added := func(p *path) float64 { return p.quartile("p50-µs") - plain.quartile("p50-µs") }
	figure.Report(b, with+"added-p50-µs", added(through)).Floor(added(bare)).AtMostTimesFloor(1.1)
	for _, unit := range []string{"packets/s", "Mbit/s"} {
		figure.Report(b, with+unit, through.quartile(unit)).Floor(bare.quartile(unit)).AtLeastTimesFloor(0.95)
		figure.Report(b, with+"plain-"+unit, through.quartile(unit)).Floor(plain.quartile(unit))
	}
}
