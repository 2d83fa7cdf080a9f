package broker

import (
	"reflect"
	"slices"

	"github.com/kube-semaphore/semaphore/broker/federation"
	"github.com/kube-semaphore/semaphore/broker/policy"
	"github.com/kube-semaphore/semaphore/internal/config"
)

// incremental reports whether a running broker can take other remotes: none of those that remain is admitted by other
// rules, has other names for its objects, or another place in the order. The rest is rare, and built again.
func incremental(was, now *config.Broker) bool {
	if len(now.Sets.AdoptFrom)+len(now.Services.AdoptFrom) > 0 {
		return false // what the tools before this one left of a new remote is taken over where engines begin
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

// follow takes a configuration with other remotes while the broker works, so that only what differs is touched. It
// returns false, and has changed nothing, where another broker must be built.
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
		// Objects of a remote that is added again so soon were observed as nobody's.
		if slices.ContainsFunc(b.engines.all(), func(e engine) bool { return e.Leftovers(r.Name) }) {
			return false
		}
	}
	// Engines drop a remote once its stream has ended, and a stream begins once all know its remote.
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

// configure gives the engines, and then what is beside them, the remotes of a configuration.
func (b *broker) configure(cfg *config.Broker) {
	for _, e := range b.engines.all() {
		e.Follow(cfg.Remotes)
	}
	for _, follow := range b.followers {
		follow(cfg)
	}
}
