package federation

import (
	"fmt"
	"slices"
	"strings"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// maxOutcomes bounds the outcomes that are sent on one stream, and that both sides store. The number of the others is
// sent, too.
const maxOutcomes = 10_000

// outcomes are the outcomes of services that were sent on a stream.
type outcomes struct {
	sent    map[outcomeKey]*semaphorev1.Outcome
	omitted uint64
}

type outcomeKey struct{ namespace, name string }

// diff returns the outcomes that differ from those sent, and empty ones for those that ended. An outcome that was sent
// remains sent, so that of too many outcomes the same ones are omitted each time.
func (o *outcomes) diff(now []*semaphorev1.Outcome) (out []*semaphorev1.PublishResponse) {
	send := func(m *semaphorev1.Outcome) {
		out = append(out, &semaphorev1.PublishResponse{Message: &semaphorev1.PublishResponse_Outcome{Outcome: m}})
	}
	if o.sent == nil {
		o.sent = map[outcomeKey]*semaphorev1.Outcome{}
	}
	is := map[outcomeKey]bool{}
	var unsent []*semaphorev1.Outcome
	for _, m := range now {
		key := outcomeKey{m.GetKey().GetNamespace(), m.GetKey().GetName()}
		if is[key] {
			continue // the first outcome of a service counts
		}
		is[key] = true
		switch was := o.sent[key]; {
		case was == nil:
			unsent = append(unsent, m)
		case was.GetCode() != m.GetCode() || was.GetReason() != m.GetReason() || was.GetConflict() != m.GetConflict() ||
			!slices.Equal(was.GetConflicts(), m.GetConflicts()):
			o.sent[key] = m
			send(m)
		}
	}
	for key, was := range o.sent {
		if !is[key] {
			delete(o.sent, key)
			send(&semaphorev1.Outcome{Key: was.GetKey()})
		}
	}
	room := min(maxOutcomes-len(o.sent), len(unsent))
	for _, m := range unsent[:room] {
		o.sent[outcomeKey{m.GetKey().GetNamespace(), m.GetKey().GetName()}] = m
		send(m)
	}
	if omitted := uint64(len(unsent) - room); omitted != o.omitted {
		o.omitted = omitted
		send(&semaphorev1.Outcome{Omitted: omitted})
	}
	return out
}

// omitted returns the number of outcomes that a cluster does not receive. The caller must hold l.mu.
func (l *link) omitted() uint64 {
	if l.current == nil {
		return 0
	}
	return l.current.outcomes.omitted
}

// omittedProblem returns a sentence if outcomes are omitted; otherwise it is empty. The caller must hold l.mu.
func (l *link) omittedProblem() string {
	if l.omitted() == 0 {
		return ""
	}
	return fmt.Sprintf("the report to cluster %s is full: it has %d of its services, and more have problems here "+
		"(semaphore_broker_outcomes_omitted counts them)", l.cluster, maxOutcomes)
}

// labelDomainsProblem returns a sentence if the remote's label domains of sets differ from those here. It is empty if
// they do not, or if either is unknown. The caller must hold l.mu.
func (s *Server) labelDomainsProblem(l *link) string {
	if l.current == nil {
		return ""
	}
	theirs, ours := l.current.session.Hello().GetLabelDomains(), s.options.LabelDomains
	if len(theirs) == 0 || len(ours) == 0 ||
		slices.Equal(slices.Sorted(slices.Values(theirs)), slices.Sorted(slices.Values(ours))) {
		return ""
	}
	const most = 8
	return fmt.Sprintf("cluster %s finds the pods of sets by labels of %.500q, and sets have labels of %q here: "+
		"policies select by the latter; set labelDomains of both to the same domains",
		l.cluster, strings.Join(theirs[:min(len(theirs), most)], ", "), strings.Join(ours, ", "))
}
