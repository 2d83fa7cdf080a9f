package broker

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-semaphore/semaphore/broker/admission"
	"github.com/kube-semaphore/semaphore/broker/standing"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// remoteNames are those of the configured remotes.
func remoteNames(cfg *config.Broker) (names []string) {
	for _, r := range cfg.Remotes {
		names = append(names, r.Name)
	}
	return names
}

// restored are the peers of the broker before that may still be, by remote and node: each is admitted like what its remote says, and one
// that is not admitted whole is left out.
func restored(ctx context.Context, cfg *config.Broker, store *standing.Store) (map[string]map[string]*semaphorev1.Node, error) {
	all, err := store.Load(ctx)
	if err != nil {
		return nil, err
	}
	for i := range cfg.Remotes {
		var others []netip.Prefix
		for j := range cfg.Remotes {
			if j != i {
				others = append(others, cfg.Remotes[j].PodPrefixes...)
			}
		}
		remote := &cfg.Remotes[i]
		checker := admission.New(remote, cfg.LocalPrefixes, others...)
		peers := all[remote.Name]
		for n, name := range slices.Sorted(maps.Keys(peers)) {
			_, refusals := checker.Check(&semaphorev1.Object{
				Key:  &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_NODE, Name: name},
				Spec: &semaphorev1.Object_Node{Node: peers[name]},
			})
			if len(refusals) > 0 || n >= remote.Limits.Nodes {
				delete(peers, name)
			}
		}
	}
	return all, nil
}
