package kernel_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/test/nodetest"
)

// TestRelease: a released device is unchanged, and has no mark of semaphore.
func TestRelease(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		h := newHost(t)
		must(t, h.Create(t.Context(), device, device, 1380))
		private, _ := wgtypes.GeneratePrivateKey()
		must(t, h.Configure(device, wgtypes.Config{PrivateKey: &private}))
		must(t, h.SetLink(device, device, 1380, true))
		subnets := []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16"), netip.MustParsePrefix("fd00:2::/48")}
		for _, s := range subnets {
			must(t, h.AddRoute(device, s, netip.Addr{}))
		}
		at := netip.MustParseAddr("10.1.7.1")
		must(t, h.AddAddress(device, at))
		must(t, h.ReplaceRoute(device, subnets[0], at))
		ip(t, "route add 10.22.0.0/16 dev wireguard.c2 proto 94 scope link") // of an earlier version
		released, err := h.Release(device)
		must(t, err)
		slices.Sort(released)
		if !slices.Equal(released, []string{"10.2.0.0/16", "10.22.0.0/16", "fd00:2::/48"}) {
			t.Errorf("released %v", released)
		}
		if d := get(t, h, device); d.Alias != device || len(d.Routes) != 2 {
			t.Errorf("ours are gone before packets can do without: %+v", d)
		}
		_, err = kernel.RemoveRouting()
		must(t, err)
		must(t, h.Unmark(device))
		d := get(t, h, device)
		if d.Alias != "" || len(d.Routes)+len(d.Addresses) != 0 || !d.Up || d.PrivateKey != private {
			t.Errorf("%+v", d)
		}
		for _, prefix := range []string{"10.2.0.0/16", "10.22.0.0/16"} {
			if out := ip(t, "route show "+prefix+" table all"); out != prefix+" dev wireguard.c2 scope link \n" {
				t.Errorf("%q", out)
			}
		}
		if out := ip(t, "-6 route show fd00:2::/48 table all"); strings.Count(out, "\n") != 1 ||
			strings.Contains(out, "proto 94") {
			t.Errorf("%q", out)
		}
		if rules := ip(t, "rule") + ip(t, "-6 rule"); strings.Contains(rules, "7394") {
			t.Errorf("rules: %s", rules)
		}
		if released, err = h.Release("wireguard.c9"); err != nil || len(released) != 0 {
			t.Errorf("what is not there: %v, %v", released, err)
		}
		must(t, h.Delete(device))
	})
}
