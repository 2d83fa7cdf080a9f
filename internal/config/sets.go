package config

import (
	"slices"
	"strings"
)

// Sets configures how the IPs of remote pods are written for policies.
type Sets struct {
	// MaxSize is the most addresses of one object; a larger set becomes several objects with the same labels.
	MaxSize int `json:"maxSize"`
	// Namespaced makes the broker also write NetworkSets, in each namespace whose namesake in the remote has pods of
	// the set.
	Namespaced bool `json:"namespaced"`
	// AdoptFrom names the tools whose sets are adopted.
	AdoptFrom []string `json:"adoptFrom"`
	// ManagedBy is the value of the label managed-by of new sets, one of Originals.
	ManagedBy string `json:"managedBy"`
}

// Originals are the tools whose sets can be adopted, by the value of their label managed-by: semaphore-policy, and the
// names of its earlier releases.
var Originals = []string{"semaphore-policy", "calico-global-network-sync-operator"}

// defaultSetSize is the size at which the apiserver's share of the cost of a write, which grows with the object, equals
// all other costs; see BenchmarkSetSize in test/bench.
const defaultSetSize = 1_000

// maxSetSize addresses of IPv6, of up to 43 bytes each, take 1.3 MB of the 1.5 MiB that etcd accepts.
const maxSetSize = 30_000

func (s *Sets) complete(p *problems, field string) {
	if s.MaxSize < 1 || s.MaxSize > maxSetSize {
		p.add(field+".maxSize", "%d: use 1 to %d addresses; more do not fit into an object", s.MaxSize, maxSetSize)
	}
	orDefault(&s.ManagedBy, Originals[0])
	if !slices.Contains(Originals, s.ManagedBy) {
		p.add(field+".managedBy", "%q: use %s, by which policies of its users select sets", s.ManagedBy,
			strings.Join(Originals, " or "))
	}
	for i, name := range s.AdoptFrom {
		if !slices.Contains(Originals, name) {
			p.add(field+".adoptFrom", "%q is no tool whose sets can be taken over: use %s", name,
				strings.Join(Originals, " or "))
		} else if slices.Contains(s.AdoptFrom[:i], name) {
			p.add(field+".adoptFrom", "%q is listed twice", name)
		}
	}
}
