package probe

// fanout is how many sizes are tried at a time: a search takes three rounds between 1280 and 1440 bytes, and five up to
// 9000.
const fanout = 8

// maxRounds is more than any search takes but one that contradicts itself.
const maxRounds = 12

// search finds the largest size that comes through, of those from least to most. It is pure. The first round asks for
// the smallest and the largest, which is all there is to ask on a path that is as wide as its links.
type search struct {
	// through is the largest size known to come through, below least while none is; lost is the smallest known not to,
	// above most while none is.
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

// arrived records that a size came through, at any time.
func (s *search) arrived(size int) {
	s.through = max(s.through, min(size, s.most))
	if s.lost <= s.through {
		s.lost = s.most + 1 // it was only slow
	}
}

// missing are the sizes of this round of which nothing is known yet: a larger one that came through speaks for smaller
// ones.
func (s *search) missing() []int {
	var out []int
	for _, size := range s.asked {
		if size > s.through {
			out = append(out, size)
		}
	}
	return out
}

// next ends a round, and begins another; false when there is nothing more to ask.
func (s *search) next() bool {
	for _, size := range s.asked {
		if size > s.through {
			s.lost = min(s.lost, size)
		}
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
