package federation

import (
	"fmt"

	"github.com/kube-semaphore/semaphore/broker/replica"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

// maxRefused is the number of a remote's refusals that a status lists in full.
const maxRefused = 10

// Findings returns the refused objects of remotes by code, the remotes whose configuration contradicts this cluster's,
// and the objects that the brake retains; their number follows from the links.
func (s *Server) Findings() (found []finding.Finding) {
	for _, v := range s.views() {
		found = append(found, v.findings...)
	}
	return found
}

func refusals(cluster string, all []replica.Refused) (found []finding.Finding) {
	at := map[finding.Code]int{}
	for n, r := range all {
		i, ok := at[r.Code]
		if !ok {
			i = len(found)
			at[r.Code] = i
			found = append(found, finding.Finding{Code: r.Code, Cluster: cluster})
		}
		f := &found[i]
		f.Count++
		if f.Count > finding.Shown && n >= maxRefused {
			continue
		}
		line := fmt.Sprintf("refused %s of cluster %s: %s (%s)", r.Key, cluster, r.Reason, r.Code)
		if f.Count <= finding.Shown {
			f.First = append(f.First, finding.Clean(line))
		}
		if n < maxRefused {
			f.Lines = append(f.Lines, line)
		}
	}
	return found
}
