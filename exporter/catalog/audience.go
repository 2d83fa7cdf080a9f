package catalog

import (
	"slices"
	"strings"
	"unique"
)

// Audience is a set of clusters with brokers that may receive an object. Values are compared with ==. A set of named
// clusters is their sorted names between commas, such as ",c2,c3,"; equal sets share their memory.
type Audience string

// The audiences without and with all clusters.
const (
	Nobody   Audience = ""
	Everyone Audience = "*"
)

func For(clusters ...string) Audience {
	if len(clusters) == 0 {
		return Nobody
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(clusters)))
	return Audience(unique.Make("," + strings.Join(sorted, ",") + ",").Value())
}

func (a Audience) Has(cluster string) bool {
	switch a {
	case Everyone:
		return true
	case Nobody:
		return false
	}
	return strings.Contains(string(a), ","+cluster+",")
}

// String returns text such as "c2, c3".
func (a Audience) String() string {
	switch a {
	case Everyone:
		return "every cluster"
	case Nobody:
		return "no cluster"
	}
	return strings.ReplaceAll(strings.Trim(string(a), ","), ",", ", ")
}

// universe is every cluster that has a broker to publish to, sorted. Set operations on audiences refer to it.
type universe []string

func (u universe) filter(in func(cluster string) bool) Audience {
	named := make([]string, 0, len(u))
	for _, cluster := range u {
		if in(cluster) {
			named = append(named, cluster)
		}
	}
	if len(named) > 0 && len(named) == len(u) {
		return Everyone
	}
	return For(named...)
}

func (u universe) intersect(a, b Audience) Audience {
	switch {
	case a == b || b == Everyone:
		return a
	case a == Everyone:
		return b
	}
	return u.filter(func(c string) bool { return a.Has(c) && b.Has(c) })
}

func (u universe) union(a, b Audience) Audience {
	switch {
	case a == b || b == Nobody:
		return a
	case a == Nobody:
		return b
	}
	return u.filter(func(c string) bool { return a.Has(c) || b.Has(c) })
}

func (u universe) subtract(a, b Audience) Audience {
	switch {
	case a == Nobody || b == Nobody:
		return a
	case a == b || b == Everyone:
		return Nobody
	}
	return u.filter(func(c string) bool { return a.Has(c) && !b.Has(c) })
}
