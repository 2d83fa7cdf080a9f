package services

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/semaphore/broker/mirror"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Outcomes returns the unexpected outcomes of a cluster's services, to be sent to it. They name nothing of other
// clusters, but for a conflict, which only the own cluster receives. failing maps Services of this cluster to why they
// cannot be written.
func (e *Engine) Outcomes(cluster string, failing map[string]string) []*semaphorev1.Outcome {
	e.mu.RLock()
	defer e.mu.RUnlock()
	all := outcomes(e.plan, cluster, failing)
	if e.imported != nil {
		all = e.imported.Outcomes(cluster, all)
	}
	return all
}

// outcome is one of a service; the subject of the reason is the service.
func outcome(namespace, name string, code finding.Code, reason string) *semaphorev1.Outcome {
	return &semaphorev1.Outcome{Key: &semaphorev1.ObjectKey{Kind: kindService, Namespace: namespace, Name: name},
		Code: string(code), Reason: reason}
}

func byService(a, b *semaphorev1.Outcome) int {
	return cmp.Or(cmp.Compare(a.GetKey().GetNamespace(), b.GetKey().GetNamespace()),
		cmp.Compare(a.GetKey().GetName(), b.GetKey().GetName()))
}

// outcomes returns the outcomes of a cluster's services, at most one per service, sorted by name.
func outcomes(p *mirror.Plan, cluster string, failing map[string]string) (out []*semaphorev1.Outcome) {
	for _, problem := range p.Problems().Of(cluster) {
		namespace, name, _ := strings.Cut(problem.Object, "/")
		o := outcome(namespace, name, problem.Code, "")
		switch problem.Code {
		case finding.NameTooLong:
			o.Reason = fmt.Sprintf("its Service would be named %s, and a Service's name has %d characters at most: shorten its "+
				"name or its namespace's", strings.Join(p.TooLong(cluster, namespace, name), " and "),
				validation.DNS1035LabelMaxLength)
		case finding.NameTaken:
			o.Reason = "its Service would have the name of another: choose another name, or have the operator change " +
				"servicePrefix"
		case finding.SettingsDiffer:
			o.Reason = "its global service is as another cluster says, which comes first " +
				"there, and what it says otherwise of ports, type or settings has no effect"
		case finding.OwnName:
			_, o.Reason, _ = strings.Cut(problem.Text, " of cluster "+cluster+" ")
		case finding.NamespaceDenied:
			o.Reason = "nothing is imported into its namespace there: the operator denies it"
		default:
			continue // it concerns only the operator of this cluster
		}
		out = append(out, o)
	}
	for name, reason := range failing {
		if of, has := p.MadeOf(name, cluster); has {
			out = append(out, outcome(of.Namespace, of.Name, finding.WriteFailed, reason))
		}
	}
	// A Service that does not exist says more than one that differs.
	differs := func(o *semaphorev1.Outcome) (rank int) {
		if finding.Code(o.GetCode()).Level() != finding.Error {
			rank = 1
		}
		return rank
	}
	slices.SortFunc(out, func(a, b *semaphorev1.Outcome) int {
		return cmp.Or(byService(a, b), differs(a)-differs(b), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Reason, b.Reason))
	})
	return slices.CompactFunc(out, func(a, b *semaphorev1.Outcome) bool { return byService(a, b) == 0 })
}
