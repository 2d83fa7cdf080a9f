package catalog

import (
	"cmp"
	"slices"
	"time"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

type Located struct {
	Key Key
	// Exported is false for an object that is not exported, now or at all; then To are the clusters that it was
	// exported to.
	Exported bool
	To       Audience
	// Revision and ObservedAt are those of its last change; 0 and zero if none is remembered.
	Revision   uint64
	ObservedAt time.Time
	// Problems are why it is not exported, or not as a whole.
	Problems []string
}

// Locate returns an object as it is exported, a Service with its slices, and a node once for each cluster.
func (c *Catalog) Locate(kind semaphorev1.Kind, namespace, of string) []Located {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := []Key{{Kind: kind, Namespace: namespace, Name: of}}
	switch kind {
	case semaphorev1.Kind_KIND_NODE:
		keys = nil
		for _, cluster := range c.remotes {
			keys = append(keys, nodeKey(cluster, of))
		}
	case semaphorev1.Kind_KIND_SERVICE:
		first := len(keys)
		for slice := range c.slices[name{namespace, of}] {
			keys = append(keys, Key{Kind: semaphorev1.Kind_KIND_ENDPOINT_SLICE, Namespace: namespace, Name: slice})
		}
		slices.SortFunc(keys[first:], func(a, b Key) int { return cmp.Compare(a.Name, b.Name) })
	}
	all := make([]Located, len(keys))
	for i, key := range keys {
		all[i] = Located{Key: key, To: Nobody}
		if e, ok := c.journal.Last(key); ok {
			all[i].Exported, all[i].To = !e.Deleted, e.Value.To
			all[i].Revision, all[i].ObservedAt = e.Revision, e.ObservedAt
		}
		for _, reason := range Reasons {
			if text := c.problems[problemKey{key, reason}]; text != "" {
				all[i].Problems = append(all[i].Problems, string(reason)+": "+text)
			}
		}
	}
	return all
}
