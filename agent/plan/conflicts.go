package plan

import "slices"

// claims are which nodes want what, of things that only one of them can have: the first by name. The outcome does not
// depend on the order in which they came.
type claims[K comparable] struct {
	first map[K]string
	// rest are the others, sorted, where there are any.
	rest map[K][]string
}

func newClaims[K comparable](n int) claims[K] {
	return claims[K]{make(map[K]string, n), map[K][]string{}}
}

func (c claims[K]) add(k K, node string) {
	first, taken := c.first[k]
	switch {
	case !taken:
		c.first[k] = node
		return
	case node < first:
		c.first[k], node = node, first
	}
	at, there := slices.BinarySearch(c.rest[k], node)
	if !there {
		c.rest[k] = slices.Insert(c.rest[k], at, node)
	}
}

func (c claims[K]) remove(k K, node string) {
	rest := c.rest[k]
	if c.first[k] != node {
		if at, there := slices.BinarySearch(rest, node); there {
			rest = slices.Delete(rest, at, at+1)
		}
	} else if len(rest) > 0 {
		c.first[k], rest = rest[0], rest[1:]
	} else {
		delete(c.first, k)
	}
	if len(rest) == 0 {
		delete(c.rest, k)
	} else {
		c.rest[k] = rest
	}
}

// has says whether a thing is the node's.
func (c claims[K]) has(k K, node string) bool { return c.first[k] == node }

// each calls f with every node that wants a thing.
func (c claims[K]) each(k K, f func(node string)) {
	if first, taken := c.first[k]; taken {
		f(first)
	}
	for _, node := range c.rest[k] {
		f(node)
	}
}
