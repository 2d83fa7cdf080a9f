package wireguard_test

import (
	"slices"
	"strings"
	"testing"

	"net/netip"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/nodetest"
)

// A device that is handed over stands as it stood, and nothing says that it was ours.
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
		released, err := h.Release(device)
		must(t, err)
		slices.Sort(released)
		if !slices.Equal(released, []string{"10.2.0.0/16", "fd00:2::/48"}) {
			t.Errorf("released %v", released)
		}
		d := get(t, h, device)
		if d.Alias != "" || len(d.Routes) != 0 || !d.Up || d.PrivateKey != private {
			t.Errorf("%+v", d)
		}
		if out := ip(t, "route show 10.2.0.0/16"); out != "10.2.0.0/16 dev wireguard.c2 scope link \n" {
			t.Errorf("%q", out)
		}
		if out := ip(t, "-6 route show fd00:2::/48"); strings.Count(out, "\n") != 1 || strings.Contains(out, "proto 94") {
			t.Errorf("%q", out)
		}
		if released, err = h.Release(device); err != nil || len(released) != 0 {
			t.Errorf("a second time: %v, %v", released, err)
		}
		if released, err = h.Release("wireguard.c9"); err != nil || len(released) != 0 {
			t.Errorf("what is not there: %v, %v", released, err)
		}
		must(t, h.Delete(device))
	})
}
