package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testbed/capture"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// Ports of the servers that this process runs inside pods.
const (
	udpPort  = 7007
	sctpPort = 7009
)

// late is the time after which a packet without an answer counts as lost, if no other answer arrived meanwhile.
const late = 10 * time.Second

// podOf returns a pod of namespace shop.
func podOf(ctx context.Context, t *testing.T, c *testbed.Cluster, name string) *testbed.Pod {
	t.Helper()
	return testkit.Value(c.Pod(ctx, "shop", name))(t)
}

// inside runs f in a network namespace.
func inside(t testing.TB, ns *netns.Namespace, f func() error) {
	t.Helper()
	must(t, ns.Do(f))
}

// udpEcho answers datagrams in a pod until the test ends. This process does so with sockets in the pod's namespace.
func udpEcho(t *testing.T, pod *testbed.Pod) {
	t.Helper()
	udpEchoIn(t, pod.Netns)
}

func udpEchoIn(t testing.TB, ns *netns.Namespace) {
	t.Helper()
	server := testkit.Value(ns.ListenPacket(t.Context(), "udp", fmt.Sprintf(":%d", udpPort)))(t)
	done := make(chan struct{})
	t.Cleanup(func() { server.Close(); <-done })
	go func() {
		defer close(done)
		buffer := make([]byte, 2048)
		for {
			n, from, err := server.ReadFrom(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = server.WriteTo(buffer[:n], from)
			}
		}
	}()
}

// exchange sends one datagram of a size and waits for its answer.
func exchange(from *netns.Namespace, to netip.AddrPort, size int) error {
	conn, err := from.DialContext(context.Background(), "udp", to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	out, in := make([]byte, size), make([]byte, size+1)
	if _, err := conn.Write(out); err != nil {
		return err
	}
	n, err := conn.Read(in)
	if err == nil && n != size {
		err = fmt.Errorf("%d bytes of %d came back", n, size)
	}
	return err
}

// reaches waits until two pods have exchanged packets over all of their addresses.
func reaches(ctx context.Context, t *testing.T, a, b *testbed.Pod) {
	t.Helper()
	began := time.Now()
	for _, way := range [][2]*testbed.Pod{{a, b}, {b, a}} {
		for _, ip := range way[1].IPs {
			if err := until(ctx, settle, func() error {
				return exchange(way[0].Netns, netip.AddrPortFrom(ip, udpPort), 100)
			}); err != nil {
				t.Fatalf("pod %s of node %s does not reach %s of pod %s of node %s: %v",
					way[0].Name, way[0].Node.Name, ip, way[1].Name, way[1].Node.Name, err)
			}
		}
	}
	t.Logf("pods %s of %s and %s of %s reached each other after %s",
		a.Name, a.Node.Name, b.Name, b.Node.Name, time.Since(began).Round(time.Millisecond))
}

// pings sends datagrams continuously to a pod that answers them.
type pings struct {
	name string
	end  func()
	// nodes are those of both ends, and dropped what their kernels had dropped at the start.
	nodes   []*testbed.Node
	dropped uint64

	mu      sync.Mutex
	sent    uint64
	missing map[uint64]time.Time
	// last is the send time of the last one. writtenOff is the number of missing ones that no longer count as in flight.
	last       time.Time
	writtenOff int
}

// pingEvery is the send interval of pings.
const pingEvery = 10 * time.Millisecond

// mayBeMore limits the datagrams in flight, so that the next one fits into all queues. Queues fill while the process
// that empties them waits for CPU time: this process, which answers, or a userspace WireGuard. Datagrams that are still
// missing after a second without a send do not count.
func (p *pings) mayBeMore() bool {
	const most = 50
	if p.writtenOff = min(p.writtenOff, len(p.missing)); len(p.missing)-p.writtenOff < most {
		p.last = time.Now()
		return true
	}
	if time.Since(p.last) > time.Second {
		p.writtenOff = len(p.missing)
	}
	return false
}

func startPings(t *testing.T, from, to *testbed.Pod) *pings {
	t.Helper()
	conn := testkit.Value(from.Netns.DialContext(t.Context(), "udp", addrPort(to).String()))(t)
	p := &pings{
		name:    fmt.Sprintf("%s/%s to %s", from.Node.Name, from.Name, to.Name),
		missing: map[uint64]time.Time{},
		nodes:   []*testbed.Node{from.Node, to.Node},
	}
	p.dropped = p.drops(t)
	stop := make(chan struct{})
	var ended sync.WaitGroup
	p.end = sync.OnceFunc(func() { close(stop); conn.Close(); ended.Wait() })
	t.Cleanup(p.end)
	ended.Go(func() {
		buffer := make([]byte, 16)
		for {
			n, err := conn.Read(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil && n == 8 {
				p.mu.Lock()
				delete(p.missing, binary.BigEndian.Uint64(buffer))
				p.mu.Unlock()
			}
		}
	})
	ended.Go(func() {
		tick := time.NewTicker(pingEvery)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			p.mu.Lock()
			if !p.mayBeMore() {
				p.mu.Unlock()
				continue
			}
			p.sent++
			number := p.sent
			p.missing[number] = time.Now()
			p.mu.Unlock()
			// A datagram that cannot be sent counts as lost.
			_, _ = conn.Write(binary.BigEndian.AppendUint64(nil, number))
		}
	})
	return p
}

// lost waits for the answers to all datagrams sent so far and counts the missing ones.
func (p *pings) lost() (sent uint64, lost int, first time.Time) {
	p.mu.Lock()
	sent = p.sent
	p.mu.Unlock()
	before := 0
	for end := time.Now().Add(late); ; time.Sleep(pingEvery) {
		before, lost = lost, 0
		p.mu.Lock()
		for number, at := range p.missing {
			if number > sent {
				continue
			}
			lost++
			if first.IsZero() || at.Before(first) {
				first = at
			}
		}
		p.mu.Unlock()
		if lost < before {
			end = time.Now().Add(late) // answers still arrive
		}
		if lost == 0 || time.Now().After(end) {
			return sent, lost, first
		}
	}
}

// noneLost fails the test if an answer is missing. If the kernels of the nodes have dropped that many because a queue
// was full, a process got no processor: then it says that this was not tested.
func (p *pings) noneLost(t *testing.T) {
	t.Helper()
	sent, lost, first := p.lost()
	t.Logf("%s: %d packets sent, %d lost", p.name, sent, lost)
	if lost == 0 && sent > 0 {
		return
	}
	at := first.Format("15:04:05.000")
	if dropped := p.drops(t); lost > 0 && dropped >= p.dropped+uint64(lost) {
		tier.NotTested(t, "%s: %d packets sent, %d lost, the first at %s; full queues of both nodes dropped %d", p.name, sent,
			lost, at, dropped-p.dropped)
		return
	}
	t.Errorf("%s: %d packets sent, %d lost, the first at %s, and no full queue dropped them", p.name, sent, lost, at)
}

// drops counts what full queues of the nodes of both ends have dropped: those of UDP sockets (the tunnels' and
// others), and those of interfaces, wireguard-go's among them.
func (p *pings) drops(t *testing.T) (sum uint64) {
	t.Helper()
	for _, n := range p.nodes {
		inside(t, n.Netns, func() error {
			text, err := os.ReadFile("/proc/thread-self/net/snmp")
			if err != nil {
				return err
			}
			sum += bufferErrors(string(text))
			links, err := netlink.LinkList()
			for _, l := range links {
				if s := l.Attrs().Statistics; s != nil {
					sum += s.RxDropped + s.TxDropped
				}
			}
			return err
		})
	}
	return sum
}

// bufferErrors returns the datagrams that found the buffer of a socket full, of /proc/net/snmp: a line of names and one
// of values for each protocol.
func bufferErrors(snmp string) (sum uint64) {
	var names []string
	for line := range strings.Lines(snmp) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "Udp:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, name := range names[:min(len(names), len(fields))] {
			if name == "RcvbufErrors" || name == "SndbufErrors" {
				n, _ := strconv.ParseUint(fields[i], 10, 64)
				sum += n
			}
		}
	}
	return sum
}

func TestBufferErrors(t *testing.T) {
	const snmp = "Tcp: RtoAlgorithm RcvbufErrors\nTcp: 1 100\n" +
		"Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors\nUdp: 9 8 7 6 5 4 3\n" +
		"UdpLite: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors\nUdpLite: 1 1 1 1 1 1 1\n"
	if got := bufferErrors(snmp); got != 9 {
		t.Errorf("%d, want 9", got)
	}
}

// wire is a capture between nodes.
type wire struct {
	s *Scenario
	c *capture.Capture
}

func (s *Scenario) listen(t *testing.T) *wire {
	t.Helper()
	c := testkit.Value(capture.Start(s.tb.Fabric(), ""))(t)
	t.Cleanup(func() { _, _ = c.Stop() })
	return &wire{s, c}
}

// stop returns the number of WireGuard packets and the clear packets between a pod and the other cluster's pods or
// nodes.
func (w *wire) stop(t *testing.T) (encrypted int, inTheClear []string) {
	t.Helper()
	frames := testkit.Value(payloads(w.c))(t)
	encrypted, _ = w.s.sort(frames)
	for _, f := range frames {
		source, destination, protocol, ok := addressesOf(f)
		if !ok {
			continue
		}
		a, aIsPod := w.s.owner(source)
		b, bIsPod := w.s.owner(destination)
		if a != nil && b != nil && a != b && (aIsPod || bIsPod) {
			inTheClear = append(inTheClear, fmt.Sprintf("%s to %s, protocol %d", source, destination, protocol))
		}
	}
	return encrypted, inTheClear
}

// noneClear is stop, and fails the test if a packet is in the clear, or if fewer than least are of WireGuard.
func (w *wire) noneClear(t *testing.T, least int) {
	t.Helper()
	if encrypted, clear := w.stop(t); len(clear) > 0 || encrypted < least {
		t.Errorf("%d packets are in the clear, the first %q; %d of WireGuard", len(clear), clear[:min(3, len(clear))],
			encrypted)
	}
}

// owner returns the cluster of an address, and whether it is a pod's address.
func (s *Scenario) owner(a netip.Addr) (_ *testbed.Cluster, pod bool) {
	for _, c := range s.tb.Clusters() {
		switch {
		case c.PodCIDR.Contains(a), c.PodCIDR6.IsValid() && c.PodCIDR6.Contains(a):
			return c, true
		case c.NodeSubnet.Contains(a), nodeSubnet6(c).IsValid() && nodeSubnet6(c).Contains(a):
			return c, false
		}
	}
	return nil, false
}

// addressesOf parses the IP header of an Ethernet frame.
func addressesOf(frame []byte) (source, destination netip.Addr, protocol byte, ok bool) {
	const ethernet, ipv4, ipv6 = 14, 20, 40
	if len(frame) < ethernet+ipv4 {
		return source, destination, 0, false
	}
	ip := frame[ethernet:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		return netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20])), ip[9], true
	case 0x86dd:
		if len(ip) < ipv6 {
			return source, destination, 0, false
		}
		return netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40])), ip[6], true
	}
	return source, destination, 0, false
}

// SCTP (RFC 9260) without kernel support: both ends are raw sockets of this process. The kernel does everything in
// between, from connection tracking and NAT to tunnels, and sees the start of an association.
const (
	protocolSCTP             = 132
	chunkInit, chunkInitAck  = 1, 2
	sctpClientPort           = 40009
	sctpTag                  = 0x5eaf0e12
	sctpHeader, sctpInitSize = 12, 20
)

// sctpPacket returns a packet with one INIT or INIT ACK chunk.
func sctpPacket(source, destination uint16, verification uint32, chunk byte) []byte {
	p := binary.BigEndian.AppendUint16(nil, source)
	p = binary.BigEndian.AppendUint16(p, destination)
	p = binary.BigEndian.AppendUint32(p, verification)
	p = append(p, 0, 0, 0, 0) // checksum
	body := binary.BigEndian.AppendUint32(nil, sctpTag)
	body = binary.BigEndian.AppendUint32(body, 65536) // receiver window
	body = binary.BigEndian.AppendUint16(body, 1)     // streams
	body = binary.BigEndian.AppendUint16(body, 1)
	body = binary.BigEndian.AppendUint32(body, 1) // first TSN
	if chunk == chunkInitAck {
		body = append(body, 0, 7, 0, 8, 1, 2, 3, 4) // a state cookie, which is mandatory
	}
	p = append(p, chunk, 0)
	p = binary.BigEndian.AppendUint16(p, uint16(4+len(body)))
	p = append(p, body...)
	binary.LittleEndian.PutUint32(p[8:], sctpChecksum(p))
	return p
}

// sctpChecksum returns the CRC32c of a packet with a zero checksum field.
func sctpChecksum(p []byte) uint32 {
	zero := append([]byte(nil), p...)
	copy(zero[8:12], []byte{0, 0, 0, 0})
	return crc32.Checksum(zero, crc32.MakeTable(crc32.Castagnoli))
}

// sctpChunk returns the type of a packet's first chunk, or 0 if the packet is damaged or for another port.
func sctpChunk(p []byte, destination uint16) byte {
	if len(p) < sctpHeader+sctpInitSize || binary.BigEndian.Uint16(p[2:]) != destination ||
		binary.LittleEndian.Uint32(p[8:]) != sctpChecksum(p) {
		return 0
	}
	return p[sctpHeader]
}

func listenSCTP(t *testing.T, ns *netns.Namespace, ip netip.Addr) net.PacketConn {
	t.Helper()
	network := fmt.Sprintf("ip4:%d", protocolSCTP)
	if ip.Is6() {
		network = fmt.Sprintf("ip6:%d", protocolSCTP)
	}
	var conn net.PacketConn
	inside(t, ns, func() (err error) {
		conn, err = net.ListenPacket(network, ip.String())
		return err
	})
	return conn
}

// sctpServer answers each INIT to a pod with an INIT ACK until the test ends.
func sctpServer(t *testing.T, pod *testbed.Pod) {
	t.Helper()
	for _, ip := range pod.IPs {
		server := listenSCTP(t, pod.Netns, ip)
		done := make(chan struct{})
		t.Cleanup(func() { server.Close(); <-done })
		go func() {
			defer close(done)
			buffer := make([]byte, 2048)
			for {
				n, from, err := server.ReadFrom(buffer)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err == nil && sctpChunk(buffer[:n], sctpPort) == chunkInit {
					source := binary.BigEndian.Uint16(buffer)
					_, _ = server.WriteTo(sctpPacket(sctpPort, source, sctpTag, chunkInitAck), from)
				}
			}
		}()
	}
}

// associates starts an association from a pod to the address of a pod or Service.
func associates(t *testing.T, from *testbed.Pod, to netip.Addr) error {
	t.Helper()
	own := from.IPs[0]
	for _, ip := range from.IPs {
		if ip.Is4() == to.Is4() {
			own = ip
		}
	}
	conn := listenSCTP(t, from.Netns, own)
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.WriteTo(sctpPacket(sctpClientPort, sctpPort, 0, chunkInit),
		&net.IPAddr{IP: to.AsSlice()}); err != nil {
		return err
	}
	buffer := make([]byte, 2048)
	for {
		n, who, err := conn.ReadFrom(buffer)
		if err != nil {
			return err
		}
		if sctpChunk(buffer[:n], sctpClientPort) == chunkInitAck {
			if answered, _ := netip.ParseAddr(who.String()); answered != to {
				return fmt.Errorf("%s answered for %s", who, to)
			}
			return nil
		}
	}
}

// addrPort returns the address and port at which a pod answers datagrams.
func addrPort(p *testbed.Pod) netip.AddrPort { return netip.AddrPortFrom(p.IP, udpPort) }
