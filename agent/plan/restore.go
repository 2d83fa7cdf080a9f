package plan

import (
	"net"
	"net/netip"
	"slices"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/agent/kernel"
)

// restoring reduces the steps to those that add to an existing device. An earlier agent saved the desired state, and
// may have applied a newer one afterwards: nothing is removed or changed before the broker has sent its state.
func (s *Steps) restoring(existing *kernel.Device) {
	s.MTU, s.SetLink, s.DeleteRoutes = existing.MTU, !existing.Up || existing.Alias != s.Alias, nil
	if s.Config == nil {
		return
	}
	had := *s.Config
	var cfg wgtypes.Config
	if existing.PrivateKey == (wgtypes.Key{}) {
		cfg.PrivateKey = had.PrivateKey
	}
	if existing.ListenPort == 0 || existing.PrivateKey == (wgtypes.Key{}) {
		cfg.ListenPort = had.ListenPort // one that was never set up has none, or any
	}
	// An allowed IP belongs to one peer: a new peer would take it from an existing one.
	taken := map[netip.Prefix]bool{}
	present := map[wgtypes.Key]bool{}
	for _, p := range existing.Peers {
		present[p.PublicKey] = true
		for _, ip := range p.AllowedIPs {
			taken[kernel.PrefixOf(&ip)] = true
		}
	}
	for _, p := range had.Peers {
		p.AllowedIPs = slices.DeleteFunc(slices.Clone(p.AllowedIPs),
			func(ip net.IPNet) bool { return taken[kernel.PrefixOf(&ip)] })
		if !p.Remove && !present[p.PublicKey] && len(p.AllowedIPs) > 0 {
			cfg.Peers = append(cfg.Peers, p)
		}
	}
	s.Config = notEmpty(cfg)
}
