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

// remoteNames returns the names of the configured remotes.
func remoteNames(cfg *config.Broker) (names []string) {
	for _, r := range cfg.Remotes {
		names = append(names, r.Name)
	}
	return names
}

// restored returns the peers of the previous broker that are still admissible, by remote and node. Each passes
// admission like a node that its remote exports; one that is not admitted completely is left out.
func restored(ctx context.Context, cfg *config.Broker,
	store *standing.Store) (map[string]map[string]*semaphorev1.Node, error) {
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
