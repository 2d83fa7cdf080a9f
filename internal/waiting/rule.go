// Package waiting has the two rules by which all parts wait: owners take turns (Lines), and what repeats follows ever
// later (Rule).
package waiting

import "time"

// Rule spaces repetitions: to restore what another writer changes again and again, or to write once more what keeps
// changing. It lets the first Free repetitions follow at once. After each further one the wait doubles, from Least to
// Most. After Calm without any, the count starts again.
type Rule struct {
	Free              int
	Least, Most, Calm time.Duration
}

func (r Rule) After(n int) time.Duration {
	if n <= r.Free {
		return 0
	}
	return min(r.Least<<min(n-r.Free-1, 20), r.Most)
}

type Repeats struct {
	Times int
	Last  time.Time
}

func (r *Repeats) Add(rule Rule, now time.Time) {
	if now.Sub(r.Last) >= rule.Calm {
		r.Times = 0
	}
	r.Times++
	r.Last = now
}

func (r Repeats) Next(rule Rule) time.Time { return r.Last.Add(rule.After(r.Times)) }
