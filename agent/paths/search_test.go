package paths

import (
	"math/rand/v2"
	"testing"
)

// TestSearch: the search finds the largest size that passes, in few rounds, wherever it is.
func TestSearch(t *testing.T) {
	for _, c := range []struct{ least, most, rounds, sizes int }{{1280, 1440, 4, 26}, {1280, 8940, 6, 42},
		{1280, 1280, 1, 1}, {1280, 1281, 2, 3}} {
		for carries := c.least - 2; carries <= c.most+2; carries++ {
			s := newSearch(c.least, c.most)
			rounds, sizes := 0, 0
			for more := true; more; more = s.next() {
				rounds++
				sizes += len(s.missing())
				for _, size := range s.missing() {
					if size <= carries {
						s.arrived(size)
					}
				}
			}
			want := min(carries, c.most)
			if carries < c.least {
				want = c.least - 1
			}
			if s.through != want || rounds > c.rounds || sizes > c.sizes {
				t.Fatalf("between %d and %d: found %d after %d rounds and %d sizes; %d come through", c.least, c.most, s.through,
					rounds, sizes, carries)
			}
			if carries >= c.most && rounds > 1 {
				t.Fatalf("%d rounds on a path as wide as its links", rounds)
			}
		}
	}
}

// TestSearchWithLoss: probes that are lost by chance, or late, make the search longer, and the result no larger than
// what passed. The search always ends.
func TestSearchWithLoss(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		carries, largest := 1280+rng.IntN(161), 0
		s := newSearch(1280, 1440)
		var late []int
		for more := true; more; more = s.next() {
			for _, size := range late {
				s.arrived(size)
			}
			late = nil
			for _, size := range s.missing() {
				if size > carries {
					continue
				}
				switch rng.IntN(4) {
				case 0:
				case 1:
					late = append(late, size)
					largest = max(largest, size)
				default:
					s.arrived(size)
					largest = max(largest, size)
				}
			}
		}
		if s.through > largest && s.through >= s.least || s.through > carries {
			t.Fatalf("found %d, of %d that come through, where %d did", s.through, carries, largest)
		}
	}
}
