package federation

import (
	"fmt"
	"slices"
	"strings"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// maxOutcomes bounds what one stream is told of its services, and what is remembered of that.
const maxOutcomes = 1000

// outcomes are what a stream was told of what became of its services.
type outcomes map[outcomeKey]*semaphorev1.Outcome

type outcomeKey struct{ namespace, name string }

// news are the outcomes that differ from those that the stream was told, and the ends of those that are no more.
func (o *outcomes) news(now []*semaphorev1.Outcome) (out []*semaphorev1.PublishResponse) {
	tell := func(m *semaphorev1.Outcome) {
		out = append(out, &semaphorev1.PublishResponse{Message: &semaphorev1.PublishResponse_Outcome{Outcome: m}})
	}
	if *o == nil {
		*o = outcomes{}
	}
	is := map[outcomeKey]bool{}
	for _, m := range now[:min(len(now), maxOutcomes)] {
		key := outcomeKey{m.GetKey().GetNamespace(), m.GetKey().GetName()}
		if is[key] {
			continue // the first one counts
		}
		is[key] = true
		if was := (*o)[key]; was.GetCode() != m.GetCode() || was.GetReason() != m.GetReason() {
			(*o)[key] = m
			tell(m)
		}
	}
	for key, was := range *o {
		if !is[key] {
			delete(*o, key)
			tell(&semaphorev1.Outcome{Key: was.GetKey()})
		}
	}
	return out
}

// domainsDiffer says that a cluster finds the pods of sets by labels of other domains than those that sets have here; empty where it
// does not, or one of both does not say. The caller holds l.mu.
func (s *Server) domainsDiffer(l *link) string {
	if l.current == nil {
		return ""
	}
	theirs := l.current.session.Hello().GetLabelDomains()
	if len(theirs) == 0 || len(s.options.LabelDomains) == 0 || sameDomains(theirs, s.options.LabelDomains) {
		return ""
	}
	const most = 8
	return fmt.Sprintf("cluster %s finds the pods of sets by labels of %.500q, and sets have labels of %q here: policies select by the latter; set labelDomains of both to the same, in one order",
		l.cluster, strings.Join(theirs[:min(len(theirs), most)], ", "), strings.Join(s.options.LabelDomains, ", "))
}

func sameDomains(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// Problems are what is wrong with how clusters are set, a line each.
func (s *Server) Problems() (lines []string) {
	for _, l := range s.links {
		l.mu.Lock()
		if line := s.domainsDiffer(l); line != "" {
			lines = append(lines, line)
		}
		l.mu.Unlock()
	}
	slices.Sort(lines)
	return lines
}
