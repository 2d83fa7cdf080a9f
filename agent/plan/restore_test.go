package plan

import (
	"fmt"
	"slices"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/kernel"
)

// TestF07RestoringOnlyAdds (F7): the restored state of an earlier agent adds what an existing device lacks, and removes
// or changes nothing: the device may be newer.
func TestF07RestoringOnlyAdds(t *testing.T) {
	key := wgtypes.Key{9}
	now := networkOf([]string{"10.2.0.0/16", "10.22.0.0/16"}, map[string]string{
		"n1": "a 192.0.2.1:51820 10.2.1.0/24", "n2": "b 192.0.2.2:51820 10.2.2.0/24", "n3": "c 192.0.2.3:51820 10.2.3.0/24",
	})
	now.Device.ListenPort, now.Device.Mtu = 51900, 1300
	stands := carryOut(t, nil, Network("c2", now, Bounds{}, key, nil))

	// This state is from before n1 had its new key, n2 its new address, and n3 existed; and from when n4 and n5
	// existed.
	before := networkOf([]string{"10.2.0.0/16", "10.24.0.0/16"}, map[string]string{
		"n1": "z 192.0.2.1:51820 10.2.1.0/24", "n2": "b 192.0.2.9:51820 10.2.2.0/24", "n4": "d 192.0.2.4:51820 10.2.4.0/24",
		"n5": "e 192.0.2.5:51820 10.2.5.0/24 10.2.3.0/24",
	})
	before.Restored = true
	s := Network("c2", before, Bounds{}, wgtypes.Key{8}, stands)
	if s.Create || s.SetLink || len(s.DeleteRoutes) > 0 || s.Config == nil || s.Config.PrivateKey != nil ||
		s.Config.ListenPort != nil {
		t.Fatalf("%+v, %+v", s, s.Config)
	}
	after := carryOut(t, stands, s)
	var got []string
	for _, p := range after.Peers {
		got = append(got, fmt.Sprintf("%c %s %v", p.PublicKey[0], p.Endpoint, p.AllowedIPs))
	}
	slices.Sort(got)
	want := []string{
		"a 192.0.2.1:51820 [{10.2.1.0 ffffff00}]", "b 192.0.2.2:51820 [{10.2.2.0 ffffff00}]",
		"c 192.0.2.3:51820 [{10.2.3.0 ffffff00}]",
		"d 192.0.2.4:51820 [{10.2.4.0 ffffff00}]", "e 192.0.2.5:51820 [{10.2.5.0 ffffff00}]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("peers:\n%q\nwant:\n%q", got, want)
	}
	if !slices.Equal(after.Routes, prefixes("10.2.0.0/16", "10.22.0.0/16", "10.24.0.0/16")) {
		t.Errorf("routes %v", after.Routes)
	}
	if after.MTU != 1300 || after.ListenPort != 51900 || after.PrivateKey != key {
		t.Errorf("MTU %d, port %d", after.MTU, after.ListenPort)
	}
	// Restoring it again changes nothing. The broker's state is then applied completely.
	if s := Network("c2", before, Bounds{}, wgtypes.Key{8}, after); !s.Empty() {
		t.Errorf("a second look: %+v, %+v", s, s.Config)
	}
	after = carryOut(t, after, Network("c2", now, Bounds{}, key, after))
	if s := Network("c2", now, Bounds{}, key, after); !s.Empty() || len(after.Peers) != 3 {
		t.Errorf("what the broker says is not done: %+v, %d peers", s, len(after.Peers))
	}
}

// TestF08RestoringMakesWhatIsNotThere (F8): if there is no device, or an empty one, everything is created as desired.
func TestF08RestoringMakesWhatIsNotThere(t *testing.T) {
	want := networkOf([]string{"10.2.0.0/16"}, map[string]string{"n1": "a 192.0.2.1:51820 10.2.1.0/24"})
	full := carryOut(t, nil, Network("c2", want, Bounds{}, wgtypes.Key{9}, nil))
	want.Restored = true
	shell := *full
	shell.Up, shell.PrivateKey, shell.ListenPort, shell.Peers, shell.Routes = false, wgtypes.Key{}, 40123, nil, nil
	for name, stands := range map[string]*kernel.Device{"nothing": nil, "a shell": &shell} {
		s := Network("c2", want, Bounds{}, wgtypes.Key{9}, stands)
		after := carryOut(t, stands, s)
		if after.PrivateKey != full.PrivateKey || after.ListenPort != 51820 || after.MTU != 1380 || !after.Up ||
			len(after.Peers) != 1 || len(after.Routes) != 1 {
			t.Errorf("%s: %+v", name, after)
		}
	}
}

// TestRestoringIsBounded: R27 holds for restored state, too: a subnet with an address that the node has now is not
// routed.
func TestRestoringIsBounded(t *testing.T) {
	want := networkOf([]string{"10.2.0.0/16", "0.0.0.0/1"}, map[string]string{"n1": "a 192.0.2.1:51820 10.2.1.0/24"})
	want.Restored = true
	s := Network("c2", want, Bounds{Own: addresses("10.2.1.7/24")}, wgtypes.Key{9}, nil)
	if len(s.Refused) != 2 || len(s.Applied.refusals()) != 1 || len(s.AddRoutes) != 0 {
		t.Errorf("%q, %q, %v", s.Refused, s.Applied.refusals(), s.AddRoutes)
	}
}
