package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/agent/kernel"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func at(n byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, n}), 51820)
}

func all(PeerKey) bool { return true }

// talking returns the peers 1 to n.
func talking(n int) map[PeerKey]netip.AddrPort {
	out := map[PeerKey]netip.AddrPort{}
	for i := 1; i <= n; i++ {
		out[PeerKey{byte(i)}] = at(byte(i))
	}
	return out
}

func TestFromLinks(t *testing.T) {
	type links []kernel.EgressLink
	link := func(to netip.Addr, name string, mtu int) kernel.EgressLink {
		return kernel.EgressLink{To: to, Link: name, MTU: mtu}
	}
	four, six := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, c := range []struct {
		name  string
		links links
		want  string
	}{
		{"none", nil, "1420 WireGuard's own, as no peer can be reached"},
		{"IPv4", links{link(four, "eth0", 1500)}, "1440 the way through eth0 carries 1500"},
		{"IPv4 in IPv6", links{link(netip.MustParseAddr("::ffff:192.0.2.1"), "eth0", 1500)},
			"1440 the way through eth0 carries 1500"},
		{"IPv6", links{link(six, "eth0", 1500)}, "1420 the way through eth0 carries 1500"},
		{"both", links{link(four, "eth0", 1500), link(six, "eth0", 1500)}, "1420 the way through eth0 carries 1500"},
		{"two links", links{link(four, "eth0", 9000), link(four, "vlan7", 1450)}, "1390 the way through vlan7 carries 1450"},
		{"IPv6 on a wider one", links{link(four, "eth0", 1500), link(six, "eth1", 1510)},
			"1430 the way through eth1 carries 1510"},
		{"jumbo", links{link(four, "eth0", 9000)}, "8940 the way through eth0 carries 9000"},
		{"narrow", links{link(four, "ppp0", 576)}, "1280 the way through ppp0 carries 576"},
		{"loopback", links{link(four, "lo", 65536)}, "65455 the way through lo carries 65536"},
	} {
		if mtu, why := MTUFromLinks(c.links); fmt.Sprint(mtu, " ", why) != c.want {
			t.Errorf("%s: %d %s; want %s", c.name, mtu, why, c.want)
		}
	}
}

// Each line of a story is "MINUTE links N", "MINUTE talk N" (peers 1 to N), "MINUTE peer N carries M", or "silent", or
// "MINUTE moves N", followed by the resulting MTU, and by the peer that limits it.
func TestMTUOverTime(t *testing.T) {
	for _, c := range []struct {
		name     string
		standing int
		story    string
	}{
		{"a new device", 0, `
			0 links 1440: 1440
			0 talk 2: 1440
			0 peer 1 carries 1440: 1440
			0 peer 2 carries 1440: 1440`},
		{"a narrow path counts at once, and the narrowest decides", 0, `
			0 links 1440: 1440
			0 talk 3: 1440
			0 peer 2 carries 1390: 1390 by 2
			1 peer 3 carries 1340: 1340 by 3
			1 peer 1 carries 1440: 1340 by 3`},
		{"a path that comes and goes has the MTU stay low", 0, `
			0 links 1440: 1440
			0 talk 1: 1440
			0 peer 1 carries 1340: 1340 by 1
			12 talk 1: 1340 by 1
			12 peer 1 carries 1440: 1340
			14 talk 1: 1340
			15 talk 1: 1440
			24 talk 1: 1440
			24 peer 1 carries 1340: 1340 by 1
			36 talk 1: 1340 by 1
			36 peer 1 carries 1440: 1340
			38 talk 1: 1340
			39 talk 1: 1440`},
		{"the present MTU is kept until enough is known", 1340, `
			0 links 1440: 1340
			0 talk 2: 1340
			0 peer 1 carries 1440: 1340
			0 peer 2 carries 1440: 1440`},
		{"the present MTU is kept, and was right", 1340, `
			0 links 1440: 1340
			0 talk 2: 1340
			0 peer 2 carries 1340: 1340 by 2
			0 peer 1 carries 1440: 1340 by 2
			30 talk 2: 1340 by 2`},
		{"the present MTU is raised when nobody talks", 1420, `
			0 links 1440: 1420
			0 talk 0: 1440`},
		{"the present MTU is raised when nobody answers", 1420, `
			0 links 1440: 1420
			0 talk 1: 1420
			0 peer 1 silent: 1440`},
		{"the present MTU is too large, or nonsense", 9000, `
			0 links 1440: 1440`},
		{"a narrower link counts at once", 0, `
			0 links 1440: 1440
			0 talk 1: 1440
			0 peer 1 carries 1440: 1440
			1 links 1390: 1390
			1 talk 1: 1390
			1 peer 1 carries 1390: 1390`},
		{"a wider link has everything measured again, and raises at once", 0, `
			0 links 1440: 1440
			0 talk 1: 1440
			0 peer 1 carries 1340: 1340 by 1
			1 links 8940: 1340
			1 talk 1: 1340
			1 peer 1 carries 8940: 8940`},
		{"nothing below the least", 0, `
			0 links 1440: 1440
			0 talk 1: 1440
			0 peer 1 carries 0: 1280 by 1`},
		{"one that does not answer any more is believed as before", 0, `
			0 links 1440: 1440
			0 talk 1: 1440
			0 peer 1 carries 1340: 1340 by 1
			12 talk 1: 1340 by 1
			12 peer 1 silent: 1340 by 1
			60 talk 1: 1340 by 1`},
		{"one that moves is measured again", 0, `
			0 links 1440: 1440
			0 talk 1: 1440
			0 peer 1 carries 1340: 1340 by 1
			20 moves 1: 1340
			20 peer 1 carries 1440: 1440`},
		{"one that goes limits no more", 0, `
			0 links 1440: 1440
			0 talk 1: 1440
			0 peer 1 carries 1340: 1340 by 1
			20 goes 1: 1440`},
		{"one that is idle limits on", 0, `
			0 links 1440: 1440
			0 talk 1: 1440
			0 peer 1 carries 1340: 1340 by 1
			60 talk 0: 1340 by 1`},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := NewMTU(c.standing)
			peers := map[PeerKey]netip.AddrPort{}
			var asked []MTUTarget
			for line := range strings.Lines(strings.TrimSpace(c.story)) {
				line = strings.TrimSpace(line)
				does, want, _ := strings.Cut(line, ": ")
				words := strings.Fields(does)
				var minute, n int
				fmt.Sscan(words[0], &minute)
				fmt.Sscan(words[2], &n)
				now := noon.Add(time.Duration(minute) * time.Minute)
				look := func() {
					asked = append(asked, d.Due(now, 100, maps.All(peers), all)...)
				}
				switch words[1] {
				case "links":
					d.Links(n, "")
				case "talk":
					peers = talking(n)
					look()
				case "moves":
					peers[PeerKey{byte(n)}] = at(200)
					look()
				case "goes":
					peers = map[PeerKey]netip.AddrPort{}
					d.Due(now, 100, maps.All(peers), func(k PeerKey) bool { return k != PeerKey{byte(n)} })
				case "peer":
					i := slices.IndexFunc(asked, func(t MTUTarget) bool { return t.Peer == PeerKey{byte(n)} && t.links == d.links })
					if i < 0 {
						t.Fatalf("%s: it was not to be measured", line)
					}
					r := MTUResult{Answered: words[3] == "carries"}
					if r.Answered {
						fmt.Sscan(words[4], &r.Carries)
					}
					d.Measured(now, asked[i], r)
					asked = slices.Delete(asked, i, i+1)
					look()
				}
				v := d.Decide(now)
				got := fmt.Sprint(v.MTU)
				if v.Limit != nil {
					got += fmt.Sprintf(" by %d", v.Limit[0])
				}
				if got != want {
					t.Fatalf("%s, but it is %s", line, got)
				}
			}
		})
	}
}

// TestPathProbesArePaced: a limited number of peers is probed at a time, however many talk; the others follow, and each
// is probed again after ten minutes.
func TestPathProbesArePaced(t *testing.T) {
	d := NewMTU(0)
	d.Links(1440, "")
	peers := talking(200)
	now := noon
	measured := map[PeerKey]int{}
	for range 13 {
		targets := d.Due(now, 16, maps.All(peers), all)
		if len(targets) > 16 {
			t.Fatalf("%d at a time", len(targets))
		}
		for _, target := range targets {
			measured[target.Peer]++
			d.Measured(now, target, MTUResult{Answered: true, Carries: 1440})
		}
		now = now.Add(10 * time.Second)
	}
	if len(measured) != 200 {
		t.Errorf("%d of 200 peers were measured", len(measured))
	}
	if again := d.Due(noon.Add(remeasureAfter-time.Second), 16, maps.All(peers), all); len(again) > 0 {
		t.Errorf("%d are measured again too early", len(again))
	}
	// A peer is not probed again while a probe is running.
	late := noon.Add(remeasureAfter + remeasureJitter + 3*time.Minute)
	first, second := d.Due(late, 150, maps.All(peers), all), d.Due(late, 150, maps.All(peers), all)
	if len(first) != 150 || len(second) != 50 {
		t.Errorf("%d, then %d", len(first), len(second))
	}
	// A result from before the change of the links is ignored.
	d.Links(1390, "")
	d.Due(late, 200, maps.All(peers), all)
	d.Measured(late, first[0], MTUResult{Answered: true, Carries: 1300})
	if v := d.Decide(late); v.MTU != 1390 || v.Measured != 0 {
		t.Errorf("%+v", v)
	}
}

// TestAnMTUOfAnEarlierAgentStays: an existing MTU that the links carry stays until a path is measured. One that no link
// carries, or that is too small for IPv6, does not.
func TestAnMTUOfAnEarlierAgentStays(t *testing.T) {
	for standing, want := range map[int]int{0: 1440, 1279: 1440, 1280: 1280, 1400: 1400, 1440: 1440, 1441: 1440} {
		d := NewMTU(standing)
		d.Links(1440, "")
		if got := d.Decide(noon).MTU; got != want {
			t.Errorf("a device with %d has %d, want %d", standing, got, want)
		}
	}
}
