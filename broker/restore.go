package broker

import (
	"context"

	"github.com/kube-semaphore/semaphore/broker/replica"
)

// restore makes replicas and engines begin with the peers of the previous broker, before any remote connects: a remote
// that connects first takes nothing from a node that had it, and the first snapshot of each is compared with them.
func (b *broker) restore(ctx context.Context) error {
	all, err := b.standing.Load(ctx)
	if err != nil {
		return err
	}
	for _, r := range b.cfg.Load().Remotes {
		nodes := b.Federation.Restore(r.Name, all[r.Name])
		b.tunnels.Take(replica.Part{Cluster: r.Name, Changes: nodes})
		if b.services != nil {
			b.services.Restore(r.Name, nodes)
		}
		if b.reaching != nil {
			b.reaching.restore(r.Name, nodes)
		}
	}
	return nil
}
