package federation

import (
	"fmt"
	"slices"
	"strings"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// maxOutcomes bounds the outcomes that are sent on one stream and remembered.
const maxOutcomes = 1000

// outcomes are the outcomes of services that were sent on a stream.
type outcomes map[outcomeKey]*semaphorev1.Outcome

type outcomeKey struct{ namespace, name string }

// diff returns the outcomes that differ from those sent, and empty ones for those that ended.
func (o *outcomes) diff(now []*semaphorev1.Outcome) (out []*semaphorev1.PublishResponse) {
	send := func(m *semaphorev1.Outcome) {
		out = append(out, &semaphorev1.PublishResponse{Message: &semaphorev1.PublishResponse_Outcome{Outcome: m}})
	}
	if *o == nil {
		*o = outcomes{}
	}
	is := map[outcomeKey]bool{}
	for _, m := range now[:min(len(now), maxOutcomes)] {
		key := outcomeKey{m.GetKey().GetNamespace(), m.GetKey().GetName()}
		if is[key] {
			continue // the first outcome of a service counts
		}
		is[key] = true
		if was := (*o)[key]; was.GetCode() != m.GetCode() ||
			was.GetReason() != m.GetReason() ||
			was.GetConflict() != m.GetConflict() || !slices.Equal(was.GetConflicts(), m.GetConflicts()) {
			(*o)[key] = m
			send(m)
		}
	}
	for key, was := range *o {
		if !is[key] {
			delete(*o, key)
			send(&semaphorev1.Outcome{Key: was.GetKey()})
		}
	}
	return out
}

// labelDomainsProblem describes that a remote puts pods into sets by labels of other domains than sets have here;
// empty if it does not, or one of both is unknown. The caller must hold l.mu.
func (s *Server) labelDomainsProblem(l *link) string {
	if l.current == nil {
		return ""
	}
	theirs := l.current.session.Hello().GetLabelDomains()
	if len(theirs) == 0 || len(s.options.LabelDomains) == 0 || sameDomains(theirs, s.options.LabelDomains) {
		return ""
	}
	const most = 8
	return fmt.Sprintf("cluster %s finds the pods of sets by labels of %.500q, and sets have labels of %q here: "+
		"policies select by the latter; set labelDomains of both to the same, in one order",
		l.cluster, strings.Join(theirs[:min(len(theirs), most)], ", "), strings.Join(s.options.LabelDomains, ", "))
}

func sameDomains(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
