package services

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kube-semaphore/semaphore/broker/replica"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// slice returns the change of a slice of the Service wide from some addresses to others; nil for no slice.
func slice(i int, old, now []string) replica.Change {
	of := func(addresses []string) *semaphorev1.Object {
		if addresses == nil {
			return nil
		}
		s := &semaphorev1.EndpointSlice{Service: "wide"}
		for _, a := range addresses {
			s.Endpoints = append(s.Endpoints, &semaphorev1.Endpoint{Addresses: []string{a}})
		}
		return &semaphorev1.Object{Spec: &semaphorev1.Object_EndpointSlice{EndpointSlice: s}}
	}
	return replica.Change{Key: replica.Key{Kind: kindSlice, Namespace: "shop", Name: fmt.Sprint("wide-", i)},
		Old: of(old), New: of(now)}
}

// TestOneServiceIsSplit: however many slices a Service has, no part of a message is large, so that other remotes have
// their turn; an endpoint that moves between slices is in one part, and changes of one slice keep their order.
func TestOneServiceIsSplit(t *testing.T) {
	const n = 2_000
	address := func(i int) []string { return []string{fmt.Sprintf("10.2.%d.%d", i>>8, i&255)} }
	var added, removed, ring, pairs []replica.Change
	for i := range n {
		added = append(added, slice(i, nil, address(i)))
		removed = append(removed, slice(i, address(i), nil))
		ring = append(ring, slice(i, address(i), address((i+1)%n)))
		pairs = append(pairs, slice(i, address(i), address(n-1-i)))
	}
	service := replica.Change{Key: replica.Key{Kind: kindService, Namespace: "shop", Name: "wide"},
		New: &semaphorev1.Object{}}
	again := append(slices.Clone(removed), added...)
	for name, test := range map[string]struct {
		changes []replica.Change
		most    int
	}{
		"a snapshot":                    {append(slices.Clone(added), service), few},
		"all withdrawn":                 {removed, few},
		"endpoints that move in pairs":  {pairs, few},
		"endpoints that move in a ring": {ring, maxMoves},
		"removed and added again":       {again, few},
	} {
		seen, largest := map[replica.Key]replica.Change{}, 0
		part, count := map[replica.Key]int{}, 0
		parts := split(test.changes)
		for i, changes := range parts {
			largest = max(largest, len(changes))
			for _, c := range changes {
				count++
				if was, had := seen[c.Key]; had && was.New != nil && c.Old == nil {
					t.Fatalf("%s: %s is added and then removed", name, c.Key)
				}
				seen[c.Key], part[c.Key] = c, i
			}
		}
		if count != len(test.changes) || largest > test.most {
			t.Errorf("%s: %d of %d changes, %d in the largest part; %d is the most", name, count, len(test.changes), largest,
				test.most)
		}
		for i := 0; name == "endpoints that move in pairs" && i < n/2; i++ {
			if a, b := pairs[i].Key, pairs[n-1-i].Key; part[a] != part[b] {
				t.Fatalf("%s: %s and %s are in different parts", name, a, b)
			}
		}
		for key, last := range seen {
			if name == "removed and added again" && last.New == nil {
				t.Fatalf("%s: %s is removed at last", name, key)
			}
		}
	}
}
