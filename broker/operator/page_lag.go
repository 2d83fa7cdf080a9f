package operator

import (
	"cmp"
	"slices"

	"github.com/kube-semaphore/semaphore/internal/diagnose/mesh"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// samples is the number of samples that are kept, for an hour. maxSeries is the number of remotes that are shown: those
// with the highest lag. remembered bounds the remotes whose samples are kept.
const (
	samples    = 360
	maxSeries  = 20
	remembered = 200
)

// Series is the lag of a remote in seconds, with one value for each ten seconds, oldest first; -1 if it was not
// measured.
type Series struct {
	Cluster string    `json:"cluster"`
	Seconds []float64 `json:"seconds"`
}

type history struct{ of map[string][]float64 }

// add adds a sample of each link. It drops remotes that are no longer configured.
func (h *history) add(links []mesh.Link) {
	next := map[string][]float64{}
	for _, l := range links[:min(len(links), remembered)] {
		value := l.LagSeconds
		if l.Lag == "" {
			value = -1
		}
		old := h.of[l.From]
		next[l.From] = append(slices.Clone(old[max(0, len(old)-samples+1):]), value)
	}
	h.of = next
}

// series returns those with the highest lag, and the number of the others.
func (h *history) series() (out []Series, more int) {
	for cluster, values := range h.of {
		out = append(out, Series{cluster, values})
	}
	slices.SortFunc(out, func(a, b Series) int {
		return cmp.Or(cmp.Compare(slices.Max(b.Seconds), slices.Max(a.Seconds)), cmp.Compare(a.Cluster, b.Cluster))
	})
	more = cutTo(&out, maxSeries)
	return out, more
}

func (s *Page) sample() {
	status := s.sources.Status()
	m := mesh.Join([]mesh.Facts{{Parts: []*semaphorev1.GetStatusResponse{status}}})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lag.add(m.Links)
}
