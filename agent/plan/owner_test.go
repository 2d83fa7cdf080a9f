package plan

import (
	"strings"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/kernel"
)

func TestOwner(t *testing.T) {
	const long, short = "exp-1-aws-eu-west-1", "wg.dff6e77ba9"
	keyed := func(d kernel.Device) kernel.Device { d.PrivateKey = wgtypes.Key{1}; return d }
	routed := func(d kernel.Device) kernel.Device { d.Routes = prefixes("10.2.0.0/16"); return d }
	for _, c := range []struct {
		name    string
		cluster string
		stands  kernel.Device
		want    Owner
	}{
		{"with our alias", "c2", keyed(kernel.Device{Name: "wireguard.c2", Alias: "wireguard.c2"}), Ours},
		{"whose alias was taken off", "c2", routed(keyed(kernel.Device{Name: "wireguard.c2"})), Ours},
		{"whose alias was changed", "c2", routed(keyed(kernel.Device{Name: "wireguard.c2", Alias: "mine"})), Ours},
		{"that was begun", "c2", kernel.Device{Name: "wireguard.c2"}, Ours},
		{"that was begun, with a short name", long, kernel.Device{Name: short}, Ours},
		{"with a short name", long, keyed(kernel.Device{Name: short, Alias: "wireguard." + long}), Ours},
		{"as semaphore-wireguard makes it", "c2", keyed(kernel.Device{Name: "wireguard.c2"}), Predecessor},
		{"without a key, with a peer", "c2", kernel.Device{Name: "wireguard.c2", Peers: make([]wgtypes.Peer, 1)},
			Predecessor},
		{"with a short name and no alias", long, keyed(kernel.Device{Name: short}), Foreign},
		{"with another alias", "c2", keyed(kernel.Device{Name: "wireguard.c2", Alias: "vpn"}), Foreign},
		{"with another cluster's alias", "c2", keyed(kernel.Device{Name: "wireguard.c2", Alias: "wireguard.c3"}), Foreign},
		{"with another name", "c2", kernel.Device{Name: "eth0"}, Foreign},
	} {
		if got := OwnerOf(c.cluster, &c.stands); got != c.want {
			t.Errorf("a device %s is of owner %d; want %d", c.name, got, c.want)
		}
		for _, adopt := range []bool{false, true} {
			adopts, err := CheckOwner(c.cluster, &c.stands, adopt)
			if want := c.want == Predecessor && adopt; adopts != want {
				t.Errorf("a device %s is adopted: %v; want %v", c.name, adopts, want)
			}
			if want := c.want == Ours || adopts; (err == nil) != want {
				t.Errorf("a device %s, adopt %v: %v", c.name, adopt, err)
			}
			if c.want == Predecessor && !adopt && !strings.Contains(err.Error(), "adoptFrom: [semaphore-wireguard]") {
				t.Errorf("%v does not say what to do", err)
			}
		}
	}
	if adopts, err := CheckOwner("c2", nil, true); adopts || err != nil {
		t.Errorf("what is not there: %v, %v", adopts, err)
	}
}

// TestAdoptedPeerKeepsItsAllowedIPs: a peer of semaphore-wireguard differs only in its keepalive, so its allowed IPs
// are not set again.
func TestAdoptedPeerKeepsItsAllowedIPs(t *testing.T) {
	want := networkOf([]string{"10.2.0.0/16"}, map[string]string{"n1": "a 192.0.2.1:51820 10.2.1.0/24"})
	stands := carryOut(t, nil, Network("c2", want, Bounds{}, wgtypes.Key{1}, nil))
	want.Device.PersistentKeepalive = nil
	s := Network("c2", want, Bounds{}, wgtypes.Key{1}, stands)
	if s.Config == nil || len(s.Config.Peers) != 1 || s.Config.Peers[0].ReplaceAllowedIPs ||
		s.Config.Peers[0].AllowedIPs != nil || !s.Config.Peers[0].UpdateOnly {
		t.Fatalf("%+v", s.Config)
	}
	if s := Network("c2", want, Bounds{}, wgtypes.Key{1}, carryOut(t, stands, s)); !s.Empty() {
		t.Errorf("%+v", s)
	}
}
