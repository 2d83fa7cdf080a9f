package paths

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	wireguard "golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// calling is a node that calls others, all devices of wireguard-go in the time of a synctest bubble, as the agents run
// them. Nothing is sent but what they, and the agent that calls, send by themselves.
type calling struct {
	testing.TB
	network
	Liveness
	device *wireguard.Device
	tun    *tuntest.ChannelTUN
	key    wgtypes.Key
	peers  []wgtypes.Key
	called []*wireguard.Device
	end    chan struct{}
}

// network carries datagrams between the devices by their port, and counts them by what they are.
type network struct {
	mu                           sync.Mutex
	sockets                      map[string]chan []byte
	handshakes, keepalives, data int
}

// take returns how many messages of each kind were sent since the last call.
func (n *network) take() (handshakes, keepalives, data int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	handshakes, keepalives, data = n.handshakes, n.keepalives, n.data
	n.handshakes, n.keepalives, n.data = 0, 0, 0
	return handshakes, keepalives, data
}

// socket is a port of the network.
type socket struct {
	*network
	at     string
	in     chan []byte
	closed chan struct{}
}

type address string

func (address) ClearSrc()             {}
func (address) SrcToString() string   { return "" }
func (a address) DstToString() string { return string(a) }
func (a address) DstToBytes() []byte  { return []byte(a) }
func (a address) DstIP() netip.Addr   { return netip.MustParseAddrPort(string(a)).Addr() }
func (address) SrcIP() netip.Addr     { return netip.Addr{} }

func (s *socket) Open(uint16) ([]conn.ReceiveFunc, uint16, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in, s.closed = make(chan []byte, 64), make(chan struct{})
	s.sockets[s.at] = s.in
	closed := s.closed
	return []conn.ReceiveFunc{func(packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
		select {
		case p := <-s.in:
			sizes[0], from[0] = copy(packets[0], p[len("127.0.0.1:10000"):]), address(p[:len("127.0.0.1:10000")])
			return 1, nil
		case <-closed:
			return 0, net.ErrClosed
		}
	}}, 10000, nil
}

func (s *socket) Close() error {
	if s.closed != nil {
		close(s.closed)
		s.closed = nil
	}
	return nil
}
func (*socket) SetMark(uint32) error                             { return nil }
func (*socket) BatchSize() int                                   { return 1 }
func (*socket) ParseEndpoint(text string) (conn.Endpoint, error) { return address(text), nil }

func (s *socket) Send(all [][]byte, to conn.Endpoint) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range all {
		switch {
		case p[0] == wireguard.MessageResponseType:
			s.handshakes++
		case p[0] != wireguard.MessageTransportType:
		case len(p) == keepalive:
			s.keepalives++
		default:
			s.data++
		}
		s.sockets[to.DstToString()] <- append([]byte(s.at), p...)
	}
	return nil
}

func at(i int) string { return fmt.Sprintf("127.0.0.1:%d", 10000+i) }

func (c *calling) start(i int, key wgtypes.Key) (*wireguard.Device, *tuntest.ChannelTUN) {
	t := tuntest.NewChannelTUN()
	go func() { // a node that is called says by ICMP that no hop is left
		for {
			select {
			case p := <-t.Inbound:
				if i == 0 {
					continue
				}
				select {
				case t.Outbound <- tuntest.Ping(netip.AddrFrom4([4]byte(p[12:])), netip.AddrFrom4([4]byte(p[16:]))):
				case <-c.end: // nobody reads from a device that was closed
					return
				}
			case <-c.end:
				return
			}
		}
	}()
	d := wireguard.NewDevice(t.TUN(), &socket{network: &c.network, at: at(i)},
		wireguard.NewLogger(wireguard.LogLevelSilent, ""))
	c.set(d, "private_key=%s", hex.EncodeToString(key[:]))
	must(c, d.Up())
	return d, t
}

func (c *calling) set(d *wireguard.Device, format string, args ...any) {
	c.Helper()
	must(c, d.IpcSet(fmt.Sprintf(format, args...)+"\n"))
}

func newKey(t testing.TB) wgtypes.Key {
	key, err := wgtypes.GeneratePrivateKey()
	must(t, err)
	return key
}

// call has node i, without any session, know the one that calls.
func (c *calling) call(i int) {
	d, _ := c.start(i+1, c.peers[i])
	public := c.key.PublicKey()
	c.set(d, "public_key=%s\nallowed_ip=10.1.0.0/16", hex.EncodeToString(public[:]))
	c.called[i] = d
}

func newCalling(t testing.TB, nodes int) *calling {
	c := &calling{TB: t, network: network{sockets: map[string]chan []byte{}}, key: newKey(t), end: make(chan struct{}),
		called: make([]*wireguard.Device, nodes)}
	c.device, c.tun = c.start(0, c.key)
	for i := range nodes {
		c.peers = append(c.peers, newKey(t))
		c.call(i)
	}
	return c
}

// connect has the node that calls know node i.
func (c *calling) connect(i int) {
	public := c.peers[i].PublicKey()
	c.set(c.device, "public_key=%s\nendpoint=%s\nallowed_ip=10.2.%d.%d/32\npersistent_keepalive_interval=25",
		hex.EncodeToString(public[:]), at(i+1), i/250, i%250)
}

// retained are the peers of devices that were closed. wireguard-go empties their queues in finalizers, which may not
// touch the channels of a bubble.
var retained []*wireguard.Peer

func (c *calling) close(d *wireguard.Device, peers ...wgtypes.Key) {
	for _, key := range peers {
		retained = append(retained, d.LookupPeer(wireguard.NoisePublicKey(key.PublicKey())))
	}
	d.Close()
}

func (c *calling) stop() {
	c.close(c.device, c.peers...)
	for _, d := range c.called {
		c.close(d, c.key)
	}
	close(c.end)
}

// look is what the agent does at each look.
func (c *calling) look(asks bool) {
	text, err := c.device.IpcGet()
	must(c, err)
	var all []PeerSample
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), "=")
		number, _ := strconv.ParseInt(value, 10, 64)
		if name == "public_key" {
			s := PeerSample{Keepalive: 25 * time.Second}
			_, err := hex.Decode(s.Key[:], []byte(value))
			must(c, err)
			all = append(all, s)
		}
		if len(all) == 0 {
			continue
		}
		switch s := &all[len(all)-1]; name {
		case "last_handshake_time_sec":
			if number != 0 {
				s.Handshake = time.Unix(number, 0)
			}
		case "tx_bytes":
			s.Sent = number
		case "rx_bytes":
			s.Received = number
		case "allowed_ip":
			s.Inside = netip.MustParsePrefix(value).Addr()
		}
	}
	c.Observe(time.Now(), 25*time.Second, slices.Values(all))
	if !asks {
		return
	}
	for _, to := range c.Unheard(time.Now()) {
		c.tun.Outbound <- tuntest.Ping(to, netip.MustParseAddr("10.1.0.1"))
	}
}

// TestUnheardPeer: a node that is called lost its session, as in a reboot, and nobody sends anything. The one that
// calls begins another within a keepalive, a look and the 15 s of WireGuard. Without questions it takes two minutes.
func TestUnheardPeer(t *testing.T) {
	for asks, bounds := range map[bool][2]time.Duration{
		true:  {15 * time.Second, 25*time.Second + SampleEvery + 16*time.Second},
		false: {90 * time.Second, 150 * time.Second},
	} {
		t.Run(fmt.Sprint("asks: ", asks), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCalling(t, 1)
				defer c.stop()
				c.connect(0)
				pass := func(d time.Duration) {
					for range d / SampleEvery {
						time.Sleep(SampleEvery)
						c.look(asks)
					}
				}
				pass(time.Minute / 2)
				before := c.newest
				c.close(c.called[0], c.key)
				c.call(0)
				lost := time.Now()
				for !c.newest.After(before) && time.Since(lost) < time.Hour {
					pass(SampleEvery)
				}
				if took := c.newest.Sub(lost); took < bounds[0] || took > bounds[1] {
					t.Errorf("the session is back after %s; want %s to %s", took, bounds[0], bounds[1])
				}
			})
		})
	}
}

// TestKeepalives measures what a node that calls sends and gets while no pod sends anything, from the second session of
// each peer on. The figures are in docs/nat.md.
func TestKeepalives(t *testing.T) {
	const lasts, spread = 6 * time.Minute, 24 // looks, in which sessions begin
	for _, nodes := range []int{100, 5000} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			if nodes > 100 {
				tier.OnlyAll(t, "that with 100")
			}
			synctest.Test(t, func(t *testing.T) {
				c := newCalling(t, nodes)
				defer c.stop()
				for look := range int(2 * lasts / SampleEvery) {
					for i := look; look < spread && i < nodes; i += spread {
						c.connect(i)
					}
					if look == int(lasts/SampleEvery) {
						c.take()
					}
					time.Sleep(SampleEvery)
					c.look(true)
				}
				handshakes, keepalives, data := c.take()
				for what, is := range map[string]struct {
					n    int
					want float64 // for 100 nodes
				}{"handshakes": {handshakes, 0.8}, "keepalives": {keepalives, 4.65}, "data": {data, 6.15}} {
					a := float64(is.n) / lasts.Seconds()
					t.Logf("%s: %.2f a second", what, a)
					if want := is.want * float64(nodes) / 100; a < 0.9*want || a > 1.1*want {
						t.Errorf("%s: %.2f a second, and the document has %.1f", what, a, want)
					}
				}
			})
		})
	}
}
