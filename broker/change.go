package broker

import (
	"context"
	"slices"

	"github.com/kube-semaphore/semaphore/internal/config"
)

// follow changes to a configuration with other remotes while the broker works, so that only the difference is touched.
// A remote that is added again waits, for another call, until the engines have handled its earlier objects.
func (b *broker) follow(ctx context.Context, cfg *config.Broker) (changed bool) {
	is := b.cfg.Load()
	next, remain := *cfg, *is
	next.Remotes, remain.Remotes = nil, nil
	adopts := false
	for _, r := range cfg.Remotes {
		was, had := is.Remote(r.Name)
		if !had && slices.ContainsFunc(b.engines.all, func(e engine) bool { return e.Queue().Holds(r.Name) }) {
			continue
		}
		adopts = adopts || !had || was.ServicePrefix != r.ServicePrefix
		next.Remotes = append(next.Remotes, r)
	}
	for _, r := range is.Remotes {
		if _, has := next.Remote(r.Name); has {
			remain.Remotes = append(remain.Remotes, r)
		}
	}
	if sameRemotes(is, &next) {
		return false
	}
	// Engines must drop a remote after its stream has ended, and a stream must begin after all know its remote.
	if len(remain.Remotes) < len(is.Remotes) {
		b.Federation.Change(remain.Remotes, remain.Own())
		b.configure(&remain)
	}
	b.configure(&next)
	if adopts {
		for _, adopt := range b.adopters {
			adopt(ctx)
		}
	}
	b.Federation.Change(next.Remotes, next.Own())
	return true
}

// configure sets the remotes of a configuration in the engines, and then in the parts beside them.
func (b *broker) configure(cfg *config.Broker) {
	for _, e := range b.engines.all {
		e.Follow(cfg.Remotes)
	}
	b.cfg.Store(cfg)
	for _, follow := range b.followers {
		follow(cfg)
	}
}
