package broker

import (
	"reflect"
	"slices"

	"github.com/kube-semaphore/semaphore/broker/federation"
	"github.com/kube-semaphore/semaphore/broker/policy"
	"github.com/kube-semaphore/semaphore/internal/config"
)

// incremental reports whether a running broker can change to other remotes: no remaining remote has other rules of
// admission, other names for its objects, or another place in the order. Other changes are rare, and need a new broker.
func incremental(was, now *config.Broker) bool {
	if len(now.Sets.AdoptFrom)+len(now.Services.AdoptFrom) > 0 {
		return false // objects that an earlier tool left of a new remote are adopted only when engines begin
	}
	remain := func(in, other *config.Broker) (remotes []config.Remote) {
		for _, r := range in.Remotes {
			if _, ok := other.Remote(r.Name); ok {
				remotes = append(remotes, r)
			}
		}
		return remotes
	}
	return slices.EqualFunc(remain(was, now), remain(now, was), func(a, b config.Remote) bool {
		return a.Name == b.Name && federation.SameAdmission(a, b) &&
			reflect.DeepEqual(policy.Longer(a.Name, was.Remotes), policy.Longer(a.Name, now.Remotes))
	})
}

// follow changes to a configuration with other remotes while the broker works, so that only the difference is touched.
// It returns false, without a change, if another broker must be built.
func (b *broker) follow(cfg *config.Broker) bool {
	if !incremental(b.cfg, cfg) {
		return false
	}
	remain := *cfg
	remain.Remotes = nil
	for _, r := range cfg.Remotes {
		if _, had := b.cfg.Remote(r.Name); had {
			remain.Remotes = append(remain.Remotes, r)
			continue
		}
		// Objects of a remote that is added again so soon were observed without a remote.
		if slices.ContainsFunc(b.engines.all(), func(e engine) bool { return e.Leftovers(r.Name) }) {
			return false
		}
	}
	// Engines must drop a remote after its stream has ended, and a stream must begin after all know its remote.
	if len(remain.Remotes) < len(b.cfg.Remotes) {
		b.federation.Change(remain.Remotes, cfg.Own())
		b.configure(&remain)
	}
	b.configure(cfg)
	b.federation.Change(cfg.Remotes, cfg.Own())
	leading := *b.leading.Load()
	leading.Remotes = cfg.Remotes
	b.leading.Store(&leading)
	b.cfg = cfg
	return true
}

// configure sets the remotes of a configuration in the engines, and then in the parts beside them.
func (b *broker) configure(cfg *config.Broker) {
	for _, e := range b.engines.all() {
		e.Follow(cfg.Remotes)
	}
	for _, follow := range b.followers {
		follow(cfg)
	}
}
