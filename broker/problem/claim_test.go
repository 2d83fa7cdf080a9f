package problem

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

// Whatever the order of claims and withdrawals, the table says what the set of claims says.
func TestOrderDoesNotMatter(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		table := NewClaims(cmp.Compare[int])
		claims := map[string]map[int]bool{"a": {}, "b": {}}
		for range 40 {
			name, c := []string{"a", "b"}[rng.IntN(2)], rng.IntN(5)
			if rng.IntN(2) == 0 {
				table.Add(name, c)
				claims[name][c] = true
			} else {
				table.Remove(name, c)
				delete(claims[name], c)
			}
			names := slices.Sorted(table.Names)
			for name, set := range claims {
				var all []int
				for c := range set {
					all = append(all, c)
				}
				slices.Sort(all)
				winner, ok := table.Winner(name)
				if ok != (len(all) > 0) || ok && winner != all[0] {
					t.Fatalf("winner of %s is %d, %v; claims are %v", name, winner, ok, all)
				}
				if len(all) > 0 && !slices.Equal(table.Losers(name), all[1:]) {
					t.Fatalf("losers of %s are %v; claims are %v", name, table.Losers(name), all)
				}
				if slices.Contains(names, name) != (len(all) > 0) {
					t.Fatalf("names %v; claims of %s are %v", names, name, all)
				}
			}
		}
	}
}
