// Package problem stores the problems of the objects that each remote exports: those that began and ended since the
// last call, and a summary of each remote. The size of a summary is bounded, whatever the remote exports. Claims
// decide which of several objects gets a name; the others have a problem. It is pure.
//
// A Set belongs to one plan and is not safe for concurrent use; a Summary is immutable.
package problem

import (
	"cmp"
	"slices"

	"github.com/kube-semaphore/semaphore/internal/finding"
)

// shown is the number of a remote's problems that are shown in full. The others are counted.
const shown = 3

type Problem struct {
	Cluster string
	// Object names the object that has the problem, and orders the problems of a remote.
	Object string
	// Code is a metric's label, and the reason of an Event.
	Code finding.Code
	Text string
	// Count is the number of things with the problem; 0 means 1.
	Count int
}

func (p Problem) compare(o Problem) int {
	return cmp.Or(cmp.Compare(p.Object, o.Object), cmp.Compare(p.Text, o.Text))
}

type Summary struct {
	Counts map[finding.Code]int
	// First are the first problems, at most shown.
	First []Problem
	Total int
}

// Set holds the problems of all remotes. The zero value is empty.
type Set struct {
	// byKey are the problems of each key, such as the name of an object.
	byKey   map[string][]Problem
	remotes map[string]*remote
	// added since the last Take, and those that ended since and do not exist again.
	added []Problem
	ended map[Problem]bool
	// changed are the remotes whose summary changed since the last Take.
	changed map[string]bool
}

type remote struct {
	counts map[finding.Code]int
	total  int
	// first are the first problems; unsorted is set if they have to be found again.
	first   []Problem
	unknown bool
	keys    map[string]bool
}

func (s *Set) Replace(key string, now []Problem) {
	was := s.byKey[key]
	if slices.Equal(was, now) {
		return
	}
	if s.byKey == nil {
		s.byKey, s.remotes, s.changed = map[string][]Problem{}, map[string]*remote{}, map[string]bool{}
	}
	for _, p := range was {
		if !slices.Contains(now, p) {
			s.remove(p)
		}
	}
	if len(now) == 0 {
		delete(s.byKey, key)
	} else {
		s.byKey[key] = slices.Clone(now)
	}
	for _, p := range now {
		if !slices.Contains(was, p) {
			s.add(key, p)
			s.added = append(s.added, p)
		}
	}
	for _, p := range was { // remotes that no longer have a problem of the key
		if r := s.remotes[p.Cluster]; r != nil &&
			!slices.ContainsFunc(now, func(n Problem) bool { return n.Cluster == p.Cluster }) {
			delete(r.keys, key)
		}
	}
}

func (s *Set) add(key string, p Problem) {
	r := s.remotes[p.Cluster]
	if r == nil {
		r = &remote{counts: map[finding.Code]int{}, keys: map[string]bool{}}
		s.remotes[p.Cluster] = r
	}
	s.changed[p.Cluster] = true
	delete(s.ended, p)
	r.keys[key] = true
	r.counts[p.Code] += max(1, p.Count)
	r.total++
	if r.unknown {
		return
	}
	r.offer(p)
}

// offer inserts a problem among the first if it belongs there.
func (r *remote) offer(p Problem) {
	i, _ := slices.BinarySearchFunc(r.first, p, Problem.compare)
	if i < shown {
		r.first = slices.Insert(r.first, i, p)
		r.first = r.first[:min(shown, len(r.first))]
	}
}

func (s *Set) remove(p Problem) {
	r := s.remotes[p.Cluster]
	s.changed[p.Cluster] = true
	if s.ended == nil {
		s.ended = map[Problem]bool{}
	}
	s.ended[p] = true
	r.counts[p.Code] -= max(1, p.Count)
	r.total--
	if i := slices.Index(r.first, p); i >= 0 {
		r.first = slices.Delete(r.first, i, i+1)
		r.unknown = r.unknown || r.total > len(r.first) // the problem that follows them is unknown
	}
}

// Take returns the problems that began since the last Take, and the summaries of the remotes that changed.
func (s *Set) Take() (added []Problem, changed map[string]*Summary) {
	added, s.added, s.ended = s.added, nil, nil
	if len(s.changed) == 0 {
		return added, nil
	}
	changed = make(map[string]*Summary, len(s.changed))
	for cluster := range s.changed {
		changed[cluster] = s.Summary(cluster)
	}
	clear(s.changed)
	return added, changed
}

func (s *Set) Summary(cluster string) *Summary {
	r := s.remotes[cluster]
	if r == nil {
		return &Summary{}
	}
	if r.unknown {
		r.first, r.unknown = r.first[:0], false
		for key := range r.keys {
			for _, p := range s.byKey[key] {
				if p.Cluster == cluster {
					r.offer(p)
				}
			}
		}
	}
	out := &Summary{Counts: map[finding.Code]int{}, First: slices.Clone(r.first), Total: r.total}
	for code, n := range r.counts {
		if n != 0 {
			out.Counts[code] = n
		}
	}
	return out
}

// Of returns the problems of a remote, ordered by object.
func (s *Set) Of(cluster string) []Problem {
	r := s.remotes[cluster]
	if r == nil {
		return nil
	}
	var all []Problem
	for key := range r.keys {
		for _, p := range s.byKey[key] {
			if p.Cluster == cluster {
				all = append(all, p)
			}
		}
	}
	slices.SortFunc(all, Problem.compare)
	return all
}
