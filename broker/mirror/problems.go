package mirror

import (
	"fmt"
	"strings"

	"github.com/kube-semaphore/semaphore/broker/choice"
	"github.com/kube-semaphore/semaphore/broker/problem"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

// Codes are all codes.
var Codes = []finding.Code{finding.NameTooLong, finding.NameTaken, finding.SettingsDiffer, finding.HostnameTwice,
	finding.NamespaceDenied, finding.ExportsConflict, finding.OwnName}

func (p *Plan) Problems() *problem.Set { return &p.problems }

func (p *Plan) problemsOf(name string) (out []problem.Problem) {
	out = append(p.tooLongProblems(name), p.nameTakenProblems(name)...)
	if p.rule != nil {
		out = append(out, p.derivedProblems(name)...)
	}
	if t := p.targets[name]; t != nil && t.shared() {
		out = append(out, p.globalProblems(t)...)
	}
	return out
}

// problemOf returns a problem of an exported service. The rest of the sentence begins with a verb.
func problemOf(r ref, code finding.Code, format string, args ...any) problem.Problem {
	return problem.Problem{
		Cluster: r.cluster, Object: r.namespace + "/" + r.name, Code: code,
		Text: fmt.Sprintf("service %s/%s of cluster %s ", r.namespace, r.name, r.cluster) + fmt.Sprintf(format, args...),
	}
}

// exportedAs returns the exported services that a claim is made for: all clusters that offer it, unless it is a
// mirror's.
func (p *Plan) exportedAs(r ref) (all []ref) {
	if !r.shared() {
		return []ref{r}
	}
	for _, cluster := range p.clusters {
		if p.offers(cluster, r) {
			all = append(all, ref{cluster, r.namespace, r.name})
		}
	}
	return all
}

// tooLongProblems returns the problems of services whose Service would have a name that is too long.
func (p *Plan) tooLongProblems(name string) (out []problem.Problem) {
	for _, r := range p.tooLong.All(name) {
		for _, of := range p.exportedAs(r) {
			if r.cluster == "" {
				out = append(out, problemOf(of, finding.NameTooLong, "is in no global service: that would be "+
					"named %s, %d characters where a Service may have %d: shorten its name or its namespace's",
					name, len(name), maxServiceName))
				continue
			}
			out = append(out, problemOf(of, finding.NameTooLong, "is not mirrored: its mirror would be named "+
				"%s, %d characters where a Service may have %d: shorten its name, its namespace's or the servicePrefix of %s",
				name, len(name), maxServiceName, r.cluster))
		}
	}
	return out
}

// nameTakenProblems returns the problems of services whose Service would have the name of another's.
func (p *Plan) nameTakenProblems(name string) (out []problem.Problem) {
	losers := p.claims.Losers(name)
	if len(losers) == 0 {
		return nil
	}
	winner, _ := p.claims.Winner(name)
	first := fmt.Sprintf("%s/%s of %s", winner.namespace, winner.name, winner.cluster)
	switch winner.cluster {
	case clusterSet:
		first = fmt.Sprintf("the import of %s/%s", winner.namespace, winner.name)
	case "":
		first = fmt.Sprintf("the global service of %s/%s", winner.namespace, winner.name)
	}
	for _, r := range losers {
		what := "is not mirrored: its mirror"
		switch r.cluster {
		case clusterSet:
			what = "is not imported: the derived Service"
		case "":
			what = "is in no global service: that"
		}
		for _, of := range p.exportedAs(r) {
			out = append(out, problemOf(of, finding.NameTaken,
				"%s would be named %s, which is that of %s", what, name, first))
		}
	}
	return out
}

// derivedProblems returns the problems of exports of one name: the operator's denials, and the differences between the
// exports.
func (p *Plan) derivedProblems(name string) (out []problem.Problem) {
	if r, denied := p.denied[name]; denied {
		for _, of := range p.exportedAs(r) {
			out = append(out, problemOf(of, finding.NamespaceDenied, "%s", p.rule.Denied(r.namespace)))
		}
	}
	if t := p.targets[name]; t != nil && t.merged != nil && len(t.merged.Conflict.Reasons) > 0 {
		out = append(out, problemOf(ref{t.merged.Order[0], t.of.namespace, t.of.name}, finding.ExportsConflict,
			"is exported by several clusters: %s", t.merged.Conflict.Message))
	}
	return out
}

// globalProblems returns the problems of services whose global service differs from them.
func (p *Plan) globalProblems(t *target) (out []problem.Problem) {
	if wrong := t.ownNameProblem(); wrong != "" {
		out = append(out, problemOf(ref{p.own, t.of.namespace, t.of.name}, finding.OwnName, "%s", wrong))
	}
	decides, first, ruled := t.authoritative(), "", p.operators(t.of) != nil
	for _, cluster := range p.clusters {
		of := ref{cluster, t.of.namespace, t.of.name}
		switch h := t.perCluster[cluster]; {
		case decides == nil || t.derived() || h == nil || h.source == nil:
		case first == "":
			first = cluster // the one that decides
		default:
			if differs := choice.Differences(decides, h.source.service, t.ipFamilies(), ruled); len(differs) > 0 {
				out = append(out, problemOf(of, finding.SettingsDiffer,
					"has in the global service %s what %s says of it: its own are %s", t.name, first,
					strings.Join(differs, "; ")))
			}
		}
		if twice := t.hostnames.Of(cluster); t.shape.headless && len(twice) > 0 {
			out = append(out, problemOf(of, finding.HostnameTwice, "has in the global service %s a "+
				"pod of the hostname %s (%d such), as another cluster has: the name stands for both",
				t.name, sorted(twice)[0], len(twice)))
		}
	}
	return out
}

// updateHostname records a change of an endpoint; nil for none.
func (w *work) updateHostname(h *clusterEndpoints, was, is *member) {
	if was.hostname() == is.hostname() {
		return
	}
	count := func(hostname string, by int) {
		if hostname != "" && h.target.hostnames.Count(hostname, h.cluster, by, w.clusters) {
			w.problemsDirty[h.target.name] = true
			w.touchLent(h.target)
		}
	}
	count(was.hostname(), -1)
	count(is.hostname(), +1)
}
