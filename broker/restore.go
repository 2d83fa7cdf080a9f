package broker

import (
	"context"
	"maps"
	"slices"

	"github.com/kube-semaphore/semaphore/broker/federation"
	"github.com/kube-semaphore/semaphore/broker/stored"
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
	store *stored.PeerStore) (map[string]map[string]*semaphorev1.Node, error) {
	all, err := store.Load(ctx)
	if err != nil {
		return nil, err
	}
	for i, remote := range cfg.Remotes {
		admits, peers := admitted(cfg, i), all[remote.Name]
		for n, name := range slices.Sorted(maps.Keys(peers)) {
			if !admits(name, peers[name]) || n >= remote.Limits.Nodes {
				delete(peers, name)
			}
		}
	}
	return all, nil
}

// admitted returns the decision whether a node of one of the remotes is admitted completely.
func admitted(cfg *config.Broker, of int) func(name string, node *semaphorev1.Node) bool {
	admit := federation.Admission(cfg.Remotes, of, cfg.LocalPrefixes)
	return func(name string, node *semaphorev1.Node) bool {
		_, refusals := admit(&semaphorev1.Object{
			Key:  &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_NODE, Name: name},
			Spec: &semaphorev1.Object_Node{Node: node},
		})
		return len(refusals) == 0
	}
}
