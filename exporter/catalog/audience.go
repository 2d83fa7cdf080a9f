package catalog

import (
	"slices"
	"strings"
	"unique"
)

// Audience is a set of clusters with brokers that may receive an object: their sorted names between commas, such as
// ",c2,c3,". Values are compared with ==; equal sets share their memory. No value means all clusters: a cluster that is
// added later would belong to the audience of an object that it never received.
type Audience string

// Nobody contains no cluster.
const Nobody Audience = ""

func For(clusters ...string) Audience {
	if len(clusters) == 0 {
		return Nobody
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(clusters)))
	return Audience(unique.Make("," + strings.Join(sorted, ",") + ",").Value())
}

func (a Audience) Has(cluster string) bool {
	return strings.Contains(string(a), ","+cluster+",")
}

// String returns text such as "c2, c3".
func (a Audience) String() string {
	if a == Nobody {
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
	return For(named...)
}

func (u universe) intersect(a, b Audience) Audience {
	if a == b {
		return a
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
	case a == b:
		return Nobody
	}
	return u.filter(func(c string) bool { return a.Has(c) && !b.Has(c) })
}
