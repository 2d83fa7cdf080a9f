package mirror

import (
	"fmt"
	"slices"
	"strings"
)

// Problem is what is wrong with a service of a cluster.
type Problem struct {
	Cluster, Namespace, Name string
	// Word is for an Event: NotMirrored or Differs.
	Word string
	// Code is for a metric: TooLong, NameTaken, Settings or Hostname.
	Code string
	// Reason follows "service NAMESPACE/NAME of cluster CLUSTER".
	Reason string
}

// String is a sentence.
func (p Problem) String() string {
	return fmt.Sprintf("service %s/%s of cluster %s %s", p.Namespace, p.Name, p.Cluster, p.Reason)
}

// The words of problems.
const (
	// NotMirrored: there is no Service for it.
	NotMirrored = "NotMirrored"
	// Differs: its global service is another than it says.
	Differs = "GlobalServiceDiffers"
)

// The codes of problems.
const (
	TooLong   = "TooLong"
	NameTaken = "NameTaken"
	Settings  = "Settings"
	Hostname  = "Hostname"
)

// Codes are all codes.
var Codes = []string{TooLong, NameTaken, Settings, Hostname}

// Problems are in the order of their clusters and services.
func (p *Plan) Problems() []Problem {
	var out []Problem
	add := func(r ref, word, code, format string, args ...any) {
		out = append(out, Problem{r.cluster, r.namespace, r.name, word, code, fmt.Sprintf(format, args...)})
	}
	// A global service is that of all who offer it.
	each := func(r ref, do func(ref)) {
		if r.cluster != "" {
			do(r)
			return
		}
		for _, cluster := range p.clusters {
			if s := p.offer(cluster, r); s != nil {
				do(s.ref)
			}
		}
	}
	for r, name := range p.tooLong {
		each(r, func(of ref) {
			if r.cluster == "" {
				add(of, NotMirrored, TooLong, "is in no global service: that would be named %s, %d characters where a Service may have %d: shorten its name or its namespace's", name, len(name), maxServiceName)
				return
			}
			add(of, NotMirrored, TooLong, "is not mirrored: its mirror would be named %s, %d characters where a Service may have %d: shorten its name, its namespace's or the servicePrefix of %s", name, len(name), maxServiceName, r.cluster)
		})
	}
	for name, all := range p.claims.Contested {
		first := fmt.Sprintf("%s/%s of %s", all[0].namespace, all[0].name, all[0].cluster)
		if all[0].cluster == "" {
			first = fmt.Sprintf("the global service of %s/%s", all[0].namespace, all[0].name)
		}
		for _, r := range all[1:] {
			each(r, func(of ref) {
				if r.cluster == "" {
					add(of, NotMirrored, NameTaken, "is in no global service: that would be named %s, which is that of %s", name, first)
					return
				}
				add(of, NotMirrored, NameTaken, "is not mirrored: its mirror would be named %s, which is that of %s", name, first)
			})
		}
	}
	for t := range p.clashing {
		for cluster, differs := range t.clashes {
			add(ref{cluster, t.of.namespace, t.of.name}, Differs, Settings, "has in the global service %s what %s says of it: its own are %s", t.name, t.decides(), strings.Join(differs, "; "))
		}
	}
	for t := range p.headless {
		for cluster, hostnames := range t.namesakes() {
			add(ref{cluster, t.of.namespace, t.of.name}, Differs, Hostname, "has in the global service %s a pod of the hostname %s (%d such), as another cluster has: the name stands for both", t.name, hostnames[0], len(hostnames))
		}
	}
	slices.SortFunc(out, func(a, b Problem) int {
		if c := (ref{a.Cluster, a.Namespace, a.Name}).compare(ref{b.Cluster, b.Namespace, b.Name}); c != 0 {
			return c
		}
		return strings.Compare(a.Reason, b.Reason)
	})
	return out
}

// decides is the cluster that decides what a global service is.
func (t *target) decides() string {
	for _, cluster := range t.plan.clusters {
		if h := t.shares[cluster]; h != nil && h.source != nil {
			return cluster
		}
	}
	return ""
}
