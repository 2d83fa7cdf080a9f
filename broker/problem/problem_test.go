package problem

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/finding"
)

// TestSummary: whatever comes and goes, the summary of a remote is that of its problems: their number, and the first
// three.
func TestSummary(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var s Set
		model := map[string][]Problem{}
		for range 200 {
			key := fmt.Sprint("key", rng.IntN(12))
			var now []Problem
			for i := range rng.IntN(3) {
				now = append(now, Problem{Cluster: fmt.Sprint("c", rng.IntN(2)), Object: key,
					Code: finding.Code(fmt.Sprint(rng.IntN(2))), Text: fmt.Sprint(i), Count: rng.IntN(4)})
			}
			before := model[key]
			s.Replace(key, now)
			model[key] = now
			added, _ := s.Take()
			for _, p := range now {
				if slices.Contains(before, p) == slices.Contains(added, p) {
					t.Fatalf("%v was there before: %v; it was added: %v", p, before, added)
				}
			}
			for _, cluster := range []string{"c0", "c1"} {
				var all []Problem
				counts := map[finding.Code]int{}
				for _, problems := range model {
					for _, p := range problems {
						if p.Cluster == cluster {
							all = append(all, p)
							counts[p.Code] += max(1, p.Count)
						}
					}
				}
				slices.SortFunc(all, Problem.compare)
				got := s.Summary(cluster)
				same := func(a, b Problem) bool { return a.compare(b) == 0 }
				if got.Total != len(all) || !slices.EqualFunc(got.First, all[:min(shown, len(all))], same) ||
					fmt.Sprint(got.Counts) != fmt.Sprint(counts) {
					t.Fatalf("%s: %+v, not %v of %v", cluster, got, counts, all)
				}
			}
		}
	}
}

// TestWarningsWithoutRoom: a warning that is not accepted is repeated when there is room, once, if the problem still
// exists. A remote without room keeps no other one's warnings from being accepted.
func TestWarningsWithoutRoom(t *testing.T) {
	var s Set
	var b Board
	room, accepted := map[string]int{}, map[string]int{}
	warn := func(cluster, _ string, _ finding.Code, note string) bool {
		if room[cluster] == 0 {
			return false
		}
		room[cluster]--
		accepted[note]++
		return true
	}
	is := func(cluster string, i int) Problem {
		return Problem{Cluster: cluster, Object: fmt.Sprint(i), Code: finding.NameTooLong,
			Text: fmt.Sprint(cluster, " ", i)}
	}
	const all, most = 500, 200
	for i := range all {
		s.Replace(fmt.Sprint("c2/", i), []Problem{is("c2", i)})
		s.Replace(fmt.Sprint("c3/", i), []Problem{is("c3", i)})
	}
	room["c2"] = most
	b.Take(&s, warn)
	if len(accepted) != most {
		t.Fatalf("%d are accepted, and there was room for %d", len(accepted), most)
	}
	// A problem that ends no longer counts, unless it begins again.
	var ended []string
	for i := most; i < most+50; i++ {
		s.Replace(fmt.Sprint("c2/", i), nil)
		ended = append(ended, is("c2", i).Text)
	}
	b.Take(&s, warn)
	for i := most; i < most+25; i++ {
		s.Replace(fmt.Sprint("c2/", i), []Problem{is("c2", i)})
	}
	b.Take(&s, warn)
	for i := range most {
		s.Replace(fmt.Sprint("c3/", i), nil)
		s.Replace(fmt.Sprint("c3/", i), []Problem{is("c3", i)})
	}
	b.Take(&s, warn)
	for range 10 {
		room["c2"], room["c3"] = room["c2"]+most/2, room["c3"]+most/2
		b.Remind(warn)
	}
	if len(accepted) != 2*all-25 {
		t.Errorf("%d are accepted, want %d", len(accepted), 2*all-25)
	}
	for note, n := range accepted {
		if n != 1 || slices.Contains(ended[25:], note) {
			t.Errorf("%s is accepted %d times", note, n)
		}
	}
	if len(b.untold) > 0 {
		t.Errorf("%d still wait", len(b.untold))
	}
}

// TestLinesAreBounded: a remote adds four lines of half a kilobyte to what is shown, whatever it does.
func TestLinesAreBounded(t *testing.T) {
	var s Set
	for i := range 10_000 {
		s.Replace(fmt.Sprint(i), []Problem{{Cluster: "c2", Object: fmt.Sprint(i), Code: finding.PeerRefused,
			Text: fmt.Sprintf("%d %01000d ä", i, 0)}})
	}
	lines := finding.Texts(s.Summary("c2").Findings("c2"))
	if len(lines) != shown+1 || lines[shown] != "cluster c2 has 9997 more problems like these" {
		t.Fatalf("%.100q", lines)
	}
	for _, line := range lines {
		if len(line) > 500+len("…") {
			t.Errorf("a line of %d bytes", len(line))
		}
	}
}
