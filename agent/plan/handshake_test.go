package plan

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

func TestTriggerHandshakes(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	prefixes := func(text string) (out []net.IPNet) {
		for _, p := range strings.Fields(text) {
			_, n, err := net.ParseCIDR(p)
			testkit.Must(t, err)
			out = append(out, *n)
		}
		return out
	}
	stood := func(key byte, shookHands time.Duration, ips string) wgtypes.Peer {
		return wgtypes.Peer{PublicKey: wgtypes.Key{key}, LastHandshakeTime: now.Add(-shookHands), AllowedIPs: prefixes(ips)}
	}
	set := func(key byte, keepalive time.Duration, ips string) wgtypes.PeerConfig {
		return wgtypes.PeerConfig{PublicKey: wgtypes.Key{key}, PersistentKeepaliveInterval: &keepalive,
			AllowedIPs: prefixes(ips), Endpoint: &net.UDPAddr{}}
	}
	calls := set(2, 0, "10.2.1.0/24")
	calls.Endpoint = nil
	gone := func(key byte) wgtypes.PeerConfig {
		return wgtypes.PeerConfig{PublicKey: wgtypes.Key{key}, Remove: true}
	}
	for _, c := range []struct {
		name   string
		stand  []wgtypes.Peer
		change []wgtypes.PeerConfig
		want   string
	}{
		{"a new key, of a node that had traffic", []wgtypes.Peer{stood(1, time.Minute, "10.2.1.0/24")},
			[]wgtypes.PeerConfig{set(2, 0, "10.2.1.0/24"), gone(1)}, "2:25s 2:0s -1"},
		{"one of its prefixes", []wgtypes.Peer{stood(1, time.Minute, "10.2.1.0/24 fd02::/64")},
			[]wgtypes.PeerConfig{set(2, 0, "fd02::/64"), gone(1)}, "2:25s 2:0s -1"},
		{"of one that had none for long", []wgtypes.Peer{stood(1, 3*time.Minute, "10.2.1.0/24")},
			[]wgtypes.PeerConfig{set(2, 0, "10.2.1.0/24"), gone(1)}, "2:0s -1"},
		{"of one that never had", []wgtypes.Peer{{PublicKey: wgtypes.Key{1}, AllowedIPs: prefixes("10.2.1.0/24")}},
			[]wgtypes.PeerConfig{set(2, 0, "10.2.1.0/24"), gone(1)}, "2:0s -1"},
		{"one with a keepalive, which sends at once anyway", []wgtypes.Peer{stood(1, time.Minute, "10.2.1.0/24")},
			[]wgtypes.PeerConfig{set(2, 10*time.Second, "10.2.1.0/24"), gone(1)}, "2:10s -1"},
		{"one that calls, to which nothing can be sent", []wgtypes.Peer{stood(1, time.Minute, "10.2.1.0/24")},
			[]wgtypes.PeerConfig{calls, gone(1)}, "2:0s -1"},
		{"other nodes that come and go", []wgtypes.Peer{stood(1, time.Minute, "10.2.1.0/24")},
			[]wgtypes.PeerConfig{set(2, 0, "10.2.2.0/24"), gone(1)}, "2:0s -1"},
		{"a peer that stays and gets a prefix", []wgtypes.Peer{stood(1, time.Minute, "10.2.1.0/24"),
			stood(2, time.Minute, "10.2.2.0/24")},
			[]wgtypes.PeerConfig{set(2, 0, "10.2.1.0/24 10.2.2.0/24"), gone(1)}, "2:0s -1"},
		{"nobody goes", []wgtypes.Peer{stood(1, time.Minute, "10.2.1.0/24")},
			[]wgtypes.PeerConfig{set(2, 0, "10.2.1.0/24")}, "2:0s"},
	} {
		cfg := wgtypes.Config{Peers: c.change}
		TriggerHandshakes(&cfg, c.stand, now)
		var got []string
		for _, p := range cfg.Peers {
			if p.Remove {
				got = append(got, fmt.Sprintf("-%d", p.PublicKey[0]))
			} else {
				got = append(got, fmt.Sprintf("%d:%s", p.PublicKey[0], *p.PersistentKeepaliveInterval))
			}
		}
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("%s: %s; want %s", c.name, got, c.want)
		}
	}
}
