package policy

import (
	"maps"
	"slices"
	"strings"
)

// This file is about sets that are NetworkSets: each is in the namespace that the pods have in their own cluster, where the
// own one has a namespace of that name.

// Namespace takes note of whether the own cluster has a namespace, and returns the names of the objects that this touches.
func (p *Plan) Namespace(name string, there bool) []string {
	if p.namespaces[name] == there {
		return nil
	}
	if there {
		p.namespaces[name] = true
	} else {
		delete(p.namespaces, name)
	}
	touched := map[string]bool{}
	for set := range p.sets {
		if set.namespace == name {
			p.touchParts(set, touched)
			p.review(set)
		}
	}
	return slices.Sorted(maps.Keys(touched))
}

// local says whether there is a place for the objects of a set.
func (p *Plan) local(set setRef) bool { return !p.options.Namespaced || p.namespaces[set.namespace] }

// within is the name of an object of a set.
func (p *Plan) within(set setRef, name string) string {
	if p.options.Namespaced {
		return set.namespace + "/" + name
	}
	return name
}

// split takes apart what within joined.
func (p *Plan) split(joined string) (namespace, name string) {
	if !p.options.Namespaced {
		return "", joined
	}
	namespace, name, _ = strings.Cut(joined, "/")
	return namespace, name
}
