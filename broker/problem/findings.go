package problem

import (
	"fmt"
	"maps"
	"slices"

	"github.com/kube-semaphore/semaphore/internal/finding"
)

// Findings returns the findings of the summary: one for each code. The last one has the number of the
// problems that are not listed.
func (s *Summary) Findings(cluster string) (found []finding.Finding) {
	if s == nil {
		return nil
	}
	coded := map[finding.Code][]Problem{}
	for _, p := range s.First {
		coded[p.Code] = append(coded[p.Code], p)
	}
	for _, code := range slices.Sorted(maps.Keys(s.Counts)) {
		var first []string
		for _, p := range coded[code] {
			first = append(first, p.Text)
		}
		found = append(found, finding.New(code, cluster, s.Counts[code], first...).Full(first...))
	}
	if more := s.Total - len(s.First); more > 0 && len(found) > 0 {
		last := &found[len(found)-1]
		last.Lines = append(last.Lines, fmt.Sprintf("cluster %s has %d more problems like these", cluster, more))
	}
	return found
}

// Findings returns those of all remotes, sorted by name.
func (b *Board) Findings() (found []finding.Finding) {
	var clusters []string
	for cluster := range b.summaries.Range {
		clusters = append(clusters, cluster.(string))
	}
	slices.Sort(clusters)
	for _, cluster := range clusters {
		found = append(found, b.Of(cluster).Findings(cluster)...)
	}
	return found
}
