package kernel_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	. "github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// side is one end of a tunnel, in a network namespace of its own.
type side struct {
	*netns.Namespace
	host   *Host
	device string
	key    wgtypes.Key
	// underlay is the address of the node, and pods are those of its pods.
	underlay string
	pods     [2]string
}

func newSide(t *testing.T, backend, name, underlay string, pods [2]string) *side {
	t.Helper()
	ns, err := netns.Create(name)
	must(t, err)
	s := &side{Namespace: ns, device: "wireguard." + name, underlay: underlay, pods: pods}
	s.key, err = wgtypes.GeneratePrivateKey()
	must(t, err)
	port := 51820
	must(t, s.Do(func() error {
		s.host, err = NewHost(backend, "", DefaultRoutingTable())
		if err == nil {
			err = s.host.Create(t.Context(), s.device, s.device, 1380)
		}
		if err == nil {
			err = s.host.Configure(s.device, wgtypes.Config{PrivateKey: &s.key, ListenPort: &port})
		}
		if err == nil {
			err = s.host.SetLink(s.device, s.device, 1380, true)
		}
		return err
	}))
	ip(t, "-n "+name+" link set lo up")
	for _, pod := range pods {
		ip(t, "-n "+name+" addr add "+pod+" dev lo")
	}
	t.Cleanup(func() {
		must(t, s.Do(func() error { return s.host.Delete(s.device) }))
		must(t, s.host.Close())
		must(t, ns.Delete())
	})
	return s
}

// peer sets the other side as a peer, and routes its pods.
func (s *side) peer(t *testing.T, other *side) {
	t.Helper()
	var allowed []net.IPNet
	for _, pod := range other.pods {
		_, subnet, err := net.ParseCIDR(pod)
		must(t, err)
		allowed = append(allowed, *subnet)
	}
	must(t, s.Do(func() error {
		err := s.host.Configure(s.device, wgtypes.Config{Peers: []wgtypes.PeerConfig{{
			PublicKey: other.key.PublicKey(), Endpoint: &net.UDPAddr{IP: net.ParseIP(other.underlay), Port: 51820},
			AllowedIPs: allowed,
		}}})
		for _, pod := range other.pods {
			err = errors.Join(err, s.host.AddRoute(s.device, netip.MustParsePrefix(pod), netip.Addr{}))
		}
		return err
	}))
}

// exchange sends packets of a size from a pod here to one on the other side, which echoes them.
func (s *side) exchange(t *testing.T, other *side, family, size int) {
	t.Helper()
	address := func(s *side) string {
		return net.JoinHostPort(netip.MustParsePrefix(s.pods[family]).Addr().String(), "7")
	}
	theirs, err := other.ListenPacket(t.Context(), "udp", address(other))
	must(t, err)
	defer theirs.Close()
	ours, err := s.ListenPacket(t.Context(), "udp", address(s))
	must(t, err)
	defer ours.Close()
	to, err := net.ResolveUDPAddr("udp", address(other))
	must(t, err)
	buffer := make([]byte, 2048)
	for i := range 5 {
		sent := slices.Repeat([]byte{byte(i)}, size)
		_, err := ours.WriteTo(sent, to)
		must(t, err)
		for _, c := range []net.PacketConn{theirs, ours} {
			must(t, c.SetReadDeadline(time.Now().Add(nodetest.Patience(10*time.Second))))
			n, from, err := c.ReadFrom(buffer)
			if err != nil || !slices.Equal(buffer[:n], sent) {
				t.Fatalf("packet %d of %d bytes, IP family %d: %d bytes, %v", i, size, family, n, err)
			}
			if c == theirs {
				_, err = c.WriteTo(buffer[:n], from)
				must(t, err)
			}
		}
	}
}

// TestBackendsTalkToEachOther: two nodes exchange packets, whatever the backend of each.
func TestBackendsTalkToEachOther(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		backends := []string{InUserspace}
		if nodetest.Backend() == InKernel {
			backends = []string{InKernel, InUserspace}
		}
		for _, theirs := range backends {
			t.Run("with "+theirs, func(t *testing.T) {
				c1 := newSide(t, nodetest.Backend(), "c1", "192.0.2.1", [2]string{"10.1.1.1/32", "fd00:1::1/128"})
				c2 := newSide(t, theirs, "c2", "192.0.2.2", [2]string{"10.2.1.1/32", "fd00:2::1/128"})
				ip(t, "-n c1 link add eth0 type veth peer name eth0 netns c2")
				for _, s := range []*side{c1, c2} {
					ip(t, "-n "+s.Name()+" addr add "+s.underlay+"/24 dev eth0")
					ip(t, "-n "+s.Name()+" link set eth0 up")
				}
				c1.peer(t, c2)
				c2.peer(t, c1)
				for family, header := range []int{28, 48} {
					for _, size := range []int{1, 1380 - header, 1800} {
						c1.exchange(t, c2, family, size)
						c2.exchange(t, c1, family, size)
					}
				}
				for _, s := range []*side{c1, c2} {
					var d *Device
					must(t, s.Do(func() (err error) { d, err = s.host.Device(s.device); return err }))
					want := theirs
					if s == c1 {
						want = nodetest.Backend()
					}
					if len(d.Peers) != 1 || d.Peers[0].LastHandshakeTime.IsZero() || d.Peers[0].ReceiveBytes == 0 ||
						d.Backend != want {
						t.Errorf("%s: backend %s, want %s; peers %+v", s.device, d.Backend, want, d.Peers)
					}
				}
			})
		}
	})
}

// TestKernelModuleIsLoadedLater: the kernel's WireGuard may appear after the agent's start, if the module is installed,
// or may be loaded, only then.
func TestKernelModuleIsLoadedLater(t *testing.T) {
	if !nodetest.OwnKernel() {
		t.Skip("takes WireGuard out of the kernel; only where the kernel is the tests' own, see make test-kernel")
	}
	const loader = "/proc/sys/kernel/modprobe"
	was, err := os.ReadFile(loader)
	must(t, err)
	restore := func() { must(t, os.WriteFile(loader, was, 0)) }
	t.Cleanup(restore)
	for _, args := range [][]string{{"-r", "wireguard"}, {"tun"}} {
		testkit.Command(t, "modprobe", args...)
	}
	must(t, os.WriteFile(loader, []byte("/bin/false"), 0))
	h, err := NewHost("auto", "", DefaultRoutingTable())
	must(t, err)
	t.Cleanup(func() { must(t, h.Close()) })
	for _, c := range []struct {
		name, want string
		before     func()
	}{{"wireguard.early", InUserspace, func() {}}, {"wireguard.late", InKernel, restore}} {
		c.before()
		must(t, h.Create(t.Context(), c.name, c.name, 1420))
		t.Cleanup(func() { must(t, h.Delete(c.name)) })
		if d := get(t, h, c.name); d.Backend != c.want {
			t.Errorf("%s: backend %s; want %s", c.name, d.Backend, c.want)
		}
		port := 51820 + len(c.name)
		must(t, h.Configure(c.name, wgtypes.Config{ListenPort: &port}))
	}
	if d := get(t, h, "wireguard.early"); d.Backend != InUserspace {
		t.Errorf("a device of wireguard-go, once the kernel has WireGuard, too: %s", d.Backend)
	}
}
