package mirror

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Outcome is an unexpected result for an exported service, for its own cluster. It names nothing of other clusters.
type Outcome struct {
	Namespace, Name string
	// Code is one of the stable codes of Outcome in federation.proto.
	Code finding.Code
	// Reason is a sentence whose subject is the service.
	Reason string
	// Only the own cluster receives Conflict: it names the cluster that decides.
	Conflict Conflict
}

// Outcomes returns the outcomes of a cluster's services, at most one per service, sorted by name. failing gives, by
// name of a Service, why its write fails.
func (p *Plan) Outcomes(cluster string, failing map[string]string) []Outcome {
	var out []Outcome
	for _, problem := range p.problems.Of(cluster) {
		o := Outcome{Code: problem.Code}
		o.Namespace, o.Name, _ = strings.Cut(problem.Object, "/")
		switch problem.Code {
		case finding.NameTooLong:
			o.Reason = p.tooLongReason(ref{cluster, o.Namespace, o.Name})
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
		t := p.targets[name]
		if t == nil || t.of.name == "" {
			continue
		}
		if t.of.cluster == cluster || t.shared() && slices.Contains(t.offeringClusters(), cluster) {
			out = append(out, Outcome{Namespace: t.of.namespace, Name: t.of.name, Code: finding.MirrorNotWritten,
				Reason: reason})
		}
	}
	slices.SortStableFunc(out, func(a, b Outcome) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Code, b.Code))
	})
	return slices.CompactFunc(out, func(a, b Outcome) bool { return a.Namespace == b.Namespace && a.Name == b.Name })
}

// tooLongReason names the Services whose names would be too long.
func (p *Plan) tooLongReason(r ref) string {
	var names []string
	s := p.sources[r]
	if s == nil {
		return ""
	}
	if mirror := naming.Mirror(p.prefixes[r.cluster], r.namespace, r.name); s.service.GetMirror() &&
		len(mirror) > maxServiceName {
		names = append(names, mirror)
	}
	if global := naming.Global(r.namespace, r.name); s.service.GetGlobal() && len(global) > maxServiceName {
		names = append(names, global)
	}
	return fmt.Sprintf("its Service would be named %s, and a Service's name has %d characters at most: shorten its name "+
		"or its namespace's", strings.Join(names, " and "), maxServiceName)
}
