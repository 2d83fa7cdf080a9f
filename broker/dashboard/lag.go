package dashboard

import (
	"cmp"
	"slices"

	"github.com/kube-semaphore/semaphore/internal/diagnose/mesh"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// samples is how many are kept, which is an hour of them, and maxSeries how many remotes are shown: those with the
// highest lag. remembered bounds the remotes of which samples are kept.
const (
	samples    = 360
	maxSeries  = 20
	remembered = 200
)

// Series is the lag of a remote in seconds, one value for each ten seconds, oldest first; -1 for not measured.
type Series struct {
	Cluster string    `json:"cluster"`
	Seconds []float64 `json:"seconds"`
}

// history is the lag of the last hour.
type history struct{ of map[string][]float64 }

// add adds a sample of each link. A remote that is no longer configured is forgotten.
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

// series are those with the highest lag, and how many more there are.
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

// sample reads the lag.
func (s *Server) sample() {
	status := s.sources.Status()
	m := mesh.Join([]mesh.Facts{{Parts: []*semaphorev1.GetStatusResponse{status}}})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lag.add(m.Links)
}
