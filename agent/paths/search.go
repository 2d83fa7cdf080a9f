package paths

// fanout is how many sizes are tried at a time: a search takes three rounds between 1280 and 1440 bytes, and five up to
// 9000.
const fanout = 8

// maxRounds is more than any search takes, except one with contradicting answers.
const maxRounds = 12

// search finds the largest size that arrives, between least and most. It is pure. The first round tries the smallest
// and the largest, which is enough on a path that carries as much as its links.
type search struct {
	// through is the largest size that arrived, below least for none; lost is the smallest size that did not, above
	// most for none.
	least, most   int
	through, lost int
	// asked are the sizes of this round.
	asked  []int
	rounds int
}

func newSearch(least, most int) *search {
	s := &search{least: least, most: most, through: least - 1, lost: most + 1}
	s.asked = []int{most}
	if least < most {
		s.asked = []int{least, most}
	}
	return s
}

// arrived records that a size arrived, also after its round.
func (s *search) arrived(size int) {
	s.through = max(s.through, min(size, s.most))
	if s.lost <= s.through {
		s.lost = s.most + 1 // it was only slow
	}
}

// missing returns the sizes of this round without a result. A larger size that arrived implies the smaller ones.
func (s *search) missing() []int {
	var out []int
	for _, size := range s.asked {
		if size > s.through {
			out = append(out, size)
		}
	}
	return out
}

// next ends a round and begins another; false if the search is complete.
func (s *search) next() bool {
	for _, size := range s.missing() {
		s.lost = min(s.lost, size)
	}
	s.asked = nil
	if s.rounds++; s.through < s.least || s.rounds >= maxRounds {
		return false
	}
	between := s.lost - s.through - 1
	if s.through == s.most || between == 0 {
		return false
	}
	n := min(between, fanout)
	for i := 1; i <= n; i++ {
		s.asked = append(s.asked, s.through+i*(between+1)/(n+1))
	}
	return true
}
