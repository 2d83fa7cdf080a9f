package kernel_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	. "github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/test/nodetest"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

func newHost(t *testing.T) *Host {
	t.Helper()
	h, err := NewHost(nodetest.Backend(), "", DefaultRoutingTable())
	must(t, err)
	t.Cleanup(func() { h.Close() })
	return h
}

var ip = testkit.IP

func get(t *testing.T, h *Host, name string) *Device {
	t.Helper()
	d, err := h.Device(name)
	must(t, err)
	return d
}

// must ends the test on an error.
var must = testkit.Must

// eventually waits for a condition, and returns how long that took.
func eventually(t *testing.T, what string, ok func() bool) time.Duration {
	t.Helper()
	return testkit.Eventually(t, nodetest.Patience(time.Minute), what, testkit.True(ok))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func socket(device string) string { return filepath.Join("/var/run/wireguard", device+".sock") }

func TestDeviceFromEndToEnd(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		h := newHost(t)
		if d := get(t, h, device); d != nil {
			t.Fatalf("there is one already: %+v", d)
		}
		must(t, h.Create(t.Context(), device, "wireguard.c2", 1380))
		private, _ := wgtypes.GeneratePrivateKey()
		peer, _ := wgtypes.GeneratePrivateKey()
		port, keepalive := 51820, 25*time.Second
		_, allowed, _ := net.ParseCIDR("10.2.1.0/24")
		must(t, h.Configure(device, wgtypes.Config{PrivateKey: &private, ListenPort: &port, Peers: []wgtypes.PeerConfig{{
			PublicKey: peer.PublicKey(), Endpoint: &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 51820},
			AllowedIPs: []net.IPNet{*allowed}, PersistentKeepaliveInterval: &keepalive,
		}}}))
		if get(t, h, device).Up {
			t.Error("the device is up before it was said so")
		}
		must(t, h.SetLink(device, "wireguard.c2", 1400, true))
		subnets := []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16"), netip.MustParsePrefix("fd00:2::/48")}
		for _, s := range subnets {
			must(t, h.AddRoute(device, s, netip.Addr{}))
			must(t, h.AddRoute(device, s, netip.Addr{})) // it exists already
		}
		d := get(t, h, device)
		if d.Alias != "wireguard.c2" || d.MTU != 1400 || !d.Up || d.ListenPort != port || d.PrivateKey != private ||
			d.PublicKey != private.PublicKey() {
			t.Errorf("%+v", d)
		}
		if len(d.Peers) != 1 || d.Peers[0].PublicKey != peer.PublicKey() || len(d.Peers[0].AllowedIPs) != 1 ||
			d.Peers[0].PersistentKeepaliveInterval != keepalive {
			t.Errorf("peers %+v", d.Peers)
		}
		if !slices.Equal(d.Routes, subnets) {
			t.Errorf("routes %v", d.Routes)
		}
		link := ip(t, "-d link show "+device)
		if !strings.Contains(link, "qlen 1000") {
			t.Errorf("queue: %s", link)
		}
		if out := ip(t, "addr show "+device); strings.Contains(out, "inet ") {
			t.Errorf("the device has an address: %s", out)
		}
		if out := ip(t, "route show 10.2.0.0/16 table 7394"); !strings.Contains(out, "proto 94 scope link") {
			t.Errorf("route: %s", out)
		}
		if out := ip(t, "route show 10.2.0.0/16") + ip(t, "-6 route show fd00:2::/48"); out != "" {
			t.Errorf("in the main table: %s", out)
		}
		for _, family := range []string{"", "-6 "} {
			if out := ip(t, family+"rule"); !strings.Contains(out, "94:\tfrom all lookup 7394 proto 94\n") {
				t.Errorf("rules: %s", out)
			}
			ip(t, family+"rule del pref 94")
		}
		if d := get(t, h, device); !d.UnruledV4 || !d.UnruledV6 {
			t.Error("it is not seen that no packet finds the routes")
		}
		for _, s := range subnets {
			must(t, h.AddRoute(device, s, netip.Addr{}))
		}
		if d := get(t, h, device); d.UnruledV4 || d.UnruledV6 || !slices.Equal(d.Routes, subnets) {
			t.Errorf("the rules are not back: %+v", d)
		}
		addresses := []netip.Addr{netip.MustParseAddr("10.1.7.1"), netip.MustParseAddr("fd00:1:7::1")}
		for _, at := range addresses {
			must(t, h.AddAddress(device, at))
			must(t, h.AddAddress(device, at)) // it exists already
		}
		if d := get(t, h, device); !slices.Equal(d.Addresses, addresses) {
			t.Errorf("addresses %v", d.Addresses)
		}
		for _, at := range addresses {
			must(t, h.DeleteAddress(device, at))
			must(t, h.DeleteAddress(device, at))
		}
		if d := get(t, h, device); len(d.Addresses) > 0 {
			t.Errorf("addresses %v", d.Addresses)
		}
		must(t, h.DeleteRoute(device, subnets[0]))
		must(t, h.DeleteRoute(device, subnets[0]))
		if d := get(t, h, device); !slices.Equal(d.Routes, subnets[1:]) {
			t.Errorf("routes %v", d.Routes)
		}
		userspace := d.Backend == InUserspace
		must(t, h.Delete(device))
		must(t, h.Delete(device))
		if userspace {
			took := eventually(t, "the device's process removes its socket and ends",
				func() bool { return !exists(socket(device)) && len(children(t)) == 0 })
			t.Logf("its process ended in %s", took)
		}
	})
}

// children returns the processes of this node except the test, which is the first.
func children(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	must(t, err)
	var pids []string
	for _, e := range entries {
		if strings.Trim(e.Name(), "0123456789") == "" && e.Name() != "1" {
			pids = append(pids, e.Name())
		}
	}
	return pids
}

// TestDeviceIsMadeAgainAtOnce: a device that another program deletes repeatedly is created again each time.
func TestDeviceIsMadeAgainAtOnce(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		h := newHost(t)
		for range 10 {
			must(t, h.Create(t.Context(), device, device, 1420))
			if get(t, h, device) == nil {
				t.Fatal("there is none")
			}
			ip(t, "link del "+device)
		}
		eventually(t, "no process is left", func() bool { return len(children(t)) == 0 })
	})
}

func TestRoutesOfOtherPrograms(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		h := newHost(t)
		ip(t, "link add wireguard.c2 type veth peer name p0")
		ip(t, "link add other type veth peer name p1")
		for _, name := range []string{"wireguard.c2", "p0", "other", "p1"} {
			ip(t, "link set "+name+" up")
		}
		ip(t, "addr add 192.0.2.1/24 dev other")
		eventually(t, "IPv6 takes routes", func() bool {
			return exec.Command("ip", "-6", "route", "replace", "fd00:9::/48", "dev", "wireguard.c2").Run() == nil
		})
		for _, c := range []struct {
			name, family, subnet, route string
			taken                       bool
		}{
			{"one that leads there", "", "10.2.0.0/16", "dev wireguard.c2 scope link", true},
			{"the same, IPv6", "-6 ", "fd00:2::/48", "dev wireguard.c2", true},
			{"through another device", "", "10.3.0.0/16", "dev other scope link", false},
			{"through a gateway", "", "10.4.0.0/16", "via 192.0.2.2", false},
			{"through another device, IPv6", "-6 ", "fd00:3::/48", "dev other", false},
			{"of another priority", "", "10.5.0.0/16", "dev other scope link metric 100", true},
			{"to nowhere", "", "10.6.0.0/16", "blackhole", false},
		} {
			add := c.subnet + " " + c.route
			if c.route == "blackhole" {
				add = "blackhole " + c.subnet
			}
			ip(t, c.family+"route add "+add+" table 7394")
			before := ip(t, c.family+"route show "+c.subnet+" table 7394")
			err := h.AddRoute("wireguard.c2", netip.MustParsePrefix(c.subnet), netip.Addr{})
			after := ip(t, c.family+"route show "+c.subnet+" table 7394")
			ours := strings.Contains(after, "dev wireguard.c2 proto 94")
			switch {
			case c.taken && (err != nil || !ours):
				t.Errorf("%s: %v, now: %s", c.name, err, after)
			case !c.taken && (err == nil || ours || after != before):
				t.Errorf("%s: %v, before: %s, now: %s", c.name, err, before, after)
			case !c.taken:
				t.Log(err)
			}
			if c.name == "one that leads there" && strings.Count(after, "\n") != 1 {
				t.Errorf("%s: it is beside ours: %s", c.name, after)
			}
		}
	})
}

func TestWatch(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		var missed atomic.Int32
		events := make(chan Event, 1000)
		testkit.Run(t, func(ctx context.Context) error {
			return Watch(ctx, DefaultRoutingTable(), func(e Event) { events <- e }, func() { missed.Add(1) })
		})
		notifiedOf := func(wanted func(Event) bool) func() bool {
			return func() bool {
				for {
					select {
					case got := <-events:
						if wanted(got) {
							return true
						}
					default:
						return false
					}
				}
			}
		}
		notified := func(name string) func() bool { return notifiedOf(func(e Event) bool { return e.Interface == name }) }
		// quiet waits until no event of earlier actions is left.
		quiet := func() {
			for more := true; more; more = len(events) > 0 {
				notified("nobody")()
				time.Sleep(300 * time.Millisecond)
			}
		}
		// The kernel has no messages about changes before the watch began.
		eventually(t, "it watches", notifiedOf(func(e Event) bool { return e.Addresses && e.Settings && e.Rules }))
		ip(t, "link add d0 type veth peer name p0")
		eventually(t, "an interface appears", notified("d0"))
		ip(t, "link set d0 up")
		ip(t, "link set p0 up")
		quiet()
		ip(t, "route add 10.2.0.0/16 dev d0 proto 94 table 7394")
		eventually(t, "a route of ours appears", notified("d0"))
		ip(t, "route del 10.2.0.0/16 dev d0 table 7394")
		eventually(t, "a route of ours goes", notified("d0"))
		ip(t, "-6 route add fd00:2::/48 dev d0 proto 94 table 7394")
		eventually(t, "an IPv6 route of ours appears", notified("d0"))
		ip(t, "route add 10.2.0.0/16 dev d0 proto 94")
		eventually(t, "a route of ours appears in another table", notified("d0"))
		ip(t, "route del 10.2.0.0/16 dev d0 proto 94")

		// Routes of others in the agent's own table may lead past the agent's, those in other tables cannot.
		to := func(prefix string) func() bool {
			return notifiedOf(func(e Event) bool { return e.Route == netip.MustParsePrefix(prefix) })
		}
		ip(t, "-6 route del fd00:2::/48 dev d0 table 7394")
		ip(t, "route replace 10.2.0.0/16 dev p0 table 7394")
		eventually(t, "a route of another's takes the place of ours", to("10.2.0.0/16"))
		ip(t, "-6 route add fd00:2:0:7::/64 dev p0 table 7394")
		eventually(t, "an IPv6 route of another's appears", to("fd00:2:0:7::/64"))
		// The agent's unreachable routes have no interface, although the kernel reports those of IPv6 with lo.
		for _, route := range []string{"10.3.0.0/16", "fd00:3::/48"} {
			for _, do := range []string{"add", "del"} {
				ip(t, "route "+do+" unreachable "+route+" proto 94 metric 65536 table 7394")
				eventually(t, do+" of unreachable "+route+", without an interface", notifiedOf(func(e Event) bool {
					return e == Event{Route: netip.MustParsePrefix(route)}
				}))
			}
		}
		quiet()
		ip(t, "route add 10.2.7.0/24 dev p0")
		time.Sleep(100 * time.Millisecond)
		if n := len(events); n > 0 {
			t.Errorf("%d events for another program's route in the main table", n)
		}
		rules := notifiedOf(func(e Event) bool { return e.Rules })
		for _, family := range []string{"", "-6 "} {
			ip(t, family+"rule add pref 94 table 7394 protocol 94")
			eventually(t, "a rule appears", rules)
			ip(t, family+"rule del pref 94")
			eventually(t, "a rule goes", rules)
		}
		ip(t, "addr add 10.1.0.1/32 dev d0")
		eventually(t, "an address appears", notifiedOf(func(e Event) bool { return e.Addresses }))
		ip(t, "addr del 10.1.0.1/32 dev d0")
		eventually(t, "an address goes", notifiedOf(func(e Event) bool { return e.Addresses }))
		for _, setting := range []string{"ipv4/conf/d0/rp_filter", "ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			must(t, os.WriteFile("/proc/sys/net/"+setting, []byte("1"), 0))
			eventually(t, setting+" changes", notifiedOf(func(e Event) bool { return e.Settings }))
		}

		// Addresses of Services that kube-proxy assigns to an interface are no event either.
		ip(t, "link add kube-ipvs0 type bridge")
		quiet()
		ip(t, "addr add 10.96.0.1/32 dev kube-ipvs0")
		ip(t, "-6 addr add fd00:96::1/128 dev kube-ipvs0")
		ip(t, "addr del 10.96.0.1/32 dev kube-ipvs0")
		time.Sleep(100 * time.Millisecond)
		if n := len(events); n > 0 {
			t.Errorf("%d events for addresses of Services", n)
		}

		// Calico's routes to the node's pods, however many, are no event.
		quiet()
		churn(t, 80)
		time.Sleep(300 * time.Millisecond)
		if n := len(events); n > 0 || missed.Load() > 0 {
			t.Errorf("%d events for routes to pods, missed %d", n, missed.Load())
		}
		ip(t, "link del d0")
		eventually(t, "an interface goes", notified("d0"))
	})
}

// churn adds 30,000 routes with a protocol.
func churn(t *testing.T, protocol int) {
	t.Helper()
	var batch strings.Builder
	for i := range 30_000 {
		fmt.Fprintf(&batch, "route add 172.16.%d.%d/32 dev d0 proto %d\n", i/256, i%256, protocol)
	}
	file := filepath.Join(t.TempDir(), "batch")
	must(t, os.WriteFile(file, []byte(batch.String()), 0o600))
	ip(t, "-batch "+file)
}

// TestInterruptedAddresses: a list of addresses during which an interface appeared or went is said to be interrupted,
// because it may lack others.
func TestInterruptedAddresses(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		ip(t, "link add d0 type bridge")
		var batch strings.Builder
		for i := range 5000 {
			fmt.Fprintf(&batch, "addr add 172.16.%d.%d/32 dev d0\n", i/256, i%256)
		}
		file := filepath.Join(t.TempDir(), "batch")
		must(t, os.WriteFile(file, []byte(batch.String()), 0o600))
		ip(t, "-batch "+file)
		h := newHost(t)
		if all, err := h.Addresses(); err != nil || len(all) < 5000 {
			t.Fatalf("%d addresses while nothing changes, %v", len(all), err)
		}
		testkit.Run(t, func(ctx context.Context) error {
			for ctx.Err() == nil {
				link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "d1"}}
				if err := errors.Join(netlink.LinkAdd(link), netlink.LinkDel(link)); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
		eventually(t, "a list is interrupted", func() bool {
			all, err := h.Addresses()
			return errors.Is(err, netlink.ErrDumpInterrupted) && len(all) > 0
		})
	})
}

// TestWatchThatFallsBehind: lost events do not end the watch; they cause a check of everything, once at the loss and
// once when all that was kept is read: what the kernel drops in between is no loss that it reports.
func TestWatchThatFallsBehind(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		ip(t, "link add d0 type veth peer name p0")
		ip(t, "link set d0 up")
		ip(t, "link set p0 up")
		var missed, again atomic.Int32
		read := make(chan struct{})
		testkit.Run(t, func(ctx context.Context) error {
			return Watch(ctx, DefaultRoutingTable(), func(e Event) {
				<-read
				if e.Interface == "d1" {
					again.Add(1)
				}
			}, func() { missed.Add(1) })
		})
		read <- struct{}{} // it watches
		churn(t, RouteProtocol)
		for missed.Load() == 0 {
			select {
			case read <- struct{}{}:
			case <-time.After(10 * time.Millisecond):
			}
		}
		ip(t, "link del d0")
		close(read)
		eventually(t, "it says that more was lost", func() bool { return missed.Load() > 1 })
		// The watch continues.
		ip(t, "link add d1 type bridge")
		eventually(t, "it notifies again", func() bool { return again.Load() > 0 })
	})
}
