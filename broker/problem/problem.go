// Package problem keeps what is wrong with what each remote exports: what came and what went since it was last asked, and
// a summary of each remote that is bounded, whatever the remote exports.
//
// It is pure, and imports nothing of ours. A Set belongs to one plan and is not safe for concurrent use; a Summary never changes.
package problem

import (
	"cmp"
	"fmt"
	"slices"
)

// Shown is how many problems of a remote are shown in full. The others are counted.
const Shown = 3

// maxLine bounds a line of a summary, bytes.
const maxLine = 500

// Problem is one that a remote has.
type Problem struct {
	Cluster string
	// Object orders the problems of a remote, and names what has it.
	Object string
	// Reason is one word in CamelCase, for an Event. Code is one for a metric; empty where a remote's problems are counted as one.
	Reason, Code string
	// Text is a sentence.
	Text string
	// Count is how many things the problem stands for; 0 is 1.
	Count int
}

// compare orders problems of one remote.
func (p Problem) compare(o Problem) int {
	return cmp.Or(cmp.Compare(p.Object, o.Object), cmp.Compare(p.Text, o.Text))
}

// Summary is what is shown of the problems of one remote.
type Summary struct {
	// Counts are by code.
	Counts map[string]int
	// First are the first problems, at most Shown.
	First []Problem
	// Total is how many problems there are.
	Total int
}

// Lines are the summary for people: the first problems, and how many more there are.
func (s *Summary) Lines(cluster string) []string {
	if s == nil {
		return nil
	}
	var lines []string
	for _, p := range s.First {
		lines = append(lines, Cut(p.Text))
	}
	if more := s.Total - len(s.First); more > 0 {
		lines = append(lines, fmt.Sprintf("cluster %s has %d more problems like these", cluster, more))
	}
	return lines
}

// Cut is a line without what is over the most that is shown of one.
func Cut(line string) string {
	if len(line) <= maxLine {
		return line
	}
	end := maxLine
	for end > 0 && line[end]&0xc0 == 0x80 { // not within a character
		end--
	}
	return line[:end] + "…"
}

// Set holds the problems of all remotes. The zero value is empty.
type Set struct {
	// byKey are the problems that each key has, such as the name of an object.
	byKey   map[string][]Problem
	remotes map[string]*remote
	// added since Take.
	added []Problem
	// changed are the remotes whose summary is another than at the last Take.
	changed map[string]bool
}

type remote struct {
	counts map[string]int
	total  int
	// first are the first problems; unsorted says that they have to be looked for.
	first   []Problem
	unknown bool
	keys    map[string]bool
}

// Replace makes the problems of a key these.
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
			s.remove(key, p)
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
	for _, p := range was { // what is left of a remote that has others of the key
		if r := s.remotes[p.Cluster]; r != nil && !slices.ContainsFunc(now, func(n Problem) bool { return n.Cluster == p.Cluster }) {
			delete(r.keys, key)
		}
	}
}

func (s *Set) add(key string, p Problem) {
	r := s.remotes[p.Cluster]
	if r == nil {
		r = &remote{counts: map[string]int{}, keys: map[string]bool{}}
		s.remotes[p.Cluster] = r
	}
	s.changed[p.Cluster] = true
	r.keys[key] = true
	r.counts[p.Code] += max(1, p.Count)
	r.total++
	if r.unknown {
		return
	}
	r.offer(p)
}

// offer takes a problem among the first, if it is one.
func (r *remote) offer(p Problem) {
	i, _ := slices.BinarySearchFunc(r.first, p, Problem.compare)
	if i < Shown {
		r.first = slices.Insert(r.first, i, p)
		r.first = r.first[:min(Shown, len(r.first))]
	}
}

func (s *Set) remove(_ string, p Problem) {
	r := s.remotes[p.Cluster]
	s.changed[p.Cluster] = true
	r.counts[p.Code] -= max(1, p.Count)
	r.total--
	if i := slices.Index(r.first, p); i >= 0 {
		r.first = slices.Delete(r.first, i, i+1)
		r.unknown = r.unknown || r.total > len(r.first) // the one that is the next is not known
	}
}

// Take is which problems came since it was last called, and the summaries of the remotes of which something differs.
func (s *Set) Take() (added []Problem, changed map[string]*Summary) {
	added, s.added = s.added, nil
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

// Summary is that of a remote now.
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
	out := &Summary{Counts: map[string]int{}, First: slices.Clone(r.first), Total: r.total}
	for code, n := range r.counts {
		if n != 0 {
			out.Counts[code] = n
		}
	}
	return out
}

// Of are the problems of a remote, in the order of their objects.
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

// All are all problems, in the order of the remotes and their objects.
func (s *Set) All() []Problem {
	var all []Problem
	for _, problems := range s.byKey {
		all = append(all, problems...)
	}
	slices.SortFunc(all, func(a, b Problem) int { return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), a.compare(b)) })
	return all
}
