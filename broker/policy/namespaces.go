package policy

import (
	"maps"
	"slices"
	"strings"
)

// This file handles NetworkSets. A set goes into the namespace of its pods, if the own cluster has one of that name.

// Namespace records whether a namespace exists in the own cluster, and returns the names of the objects that this
// touches.
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
			p.updateProblems(set)
		}
	}
	return slices.Sorted(maps.Keys(touched))
}

// hasNamespace reports whether the objects of a set can exist.
func (p *Plan) hasNamespace(set setRef) bool {
	return !p.options.Namespaced || p.namespaces[set.namespace]
}

// objectName returns the key of an object: its name, after its namespace if it has one.
func (p *Plan) objectName(set setRef, name string) string {
	if p.options.Namespaced {
		return set.namespace + "/" + name
	}
	return name
}

func (p *Plan) split(joined string) (namespace, name string) {
	if !p.options.Namespaced {
		return "", joined
	}
	namespace, name, _ = strings.Cut(joined, "/")
	return namespace, name
}
