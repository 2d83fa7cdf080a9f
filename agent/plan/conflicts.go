package plan

import "slices"

// claims record which nodes claim a key or prefix that only one of them can have: the first by name gets it. The
// outcome does not depend on the order of arrival.
type claims[K comparable] struct {
	first map[K]string
	// rest are the other claimants, sorted, if there are any.
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

func (c claims[K]) has(k K, node string) bool { return c.first[k] == node }

func (c claims[K]) each(k K, f func(node string)) {
	if first, taken := c.first[k]; taken {
		f(first)
	}
	for _, node := range c.rest[k] {
		f(node)
	}
}
