package mirror

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kube-semaphore/semaphore/broker/problem"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Reasons of problems.
const (
	// NotMirrored means that no Service exists for the exported one.
	NotMirrored = "NotMirrored"
	// Differs means that the global service has other settings than the exported one.
	Differs = "GlobalServiceDiffers"
)

// Codes of problems.
const (
	TooLong   = "TooLong"
	NameTaken = "NameTaken"
	Settings  = "Settings"
	Hostname  = "Hostname"
)

// Codes are all codes.
var Codes = []string{TooLong, NameTaken, Settings, Hostname}

// Problems returns the problems of exported services.
func (p *Plan) Problems() *problem.Set { return &p.problems }

// problemsOf determines the problems of the services that claim a name.
func (p *Plan) problemsOf(name string) (out []problem.Problem) {
	add := func(r ref, reason, code, format string, args ...any) {
		out = append(out, problem.Problem{
			Cluster: r.cluster, Object: r.namespace + "/" + r.name, Reason: reason, Code: code,
			Text: fmt.Sprintf("service %s/%s of cluster %s ", r.namespace, r.name, r.cluster) + fmt.Sprintf(format, args...),
		})
	}
	// A global service concerns all clusters that export it.
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
	for _, r := range p.tooLong[name] {
		each(r, func(of ref) {
			if r.cluster == "" {
				add(of, NotMirrored, TooLong, "is in no global service: that would be named %s, %d characters where a Service may have %d: shorten its name or its namespace's",
					name, len(name), maxServiceName)
				return
			}
			add(of, NotMirrored, TooLong, "is not mirrored: its mirror would be named %s, %d characters where a Service may have %d: shorten its name, "+
				"its namespace's or the servicePrefix of %s", name, len(name), maxServiceName, r.cluster)
		})
	}
	if losers := p.claims.Losers(name); len(losers) > 0 {
		winner, _ := p.claims.Winner(name)
		first := fmt.Sprintf("%s/%s of %s", winner.namespace, winner.name, winner.cluster)
		if winner.cluster == "" {
			first = fmt.Sprintf("the global service of %s/%s", winner.namespace, winner.name)
		}
		for _, r := range losers {
			each(r, func(of ref) {
				if r.cluster == "" {
					add(of, NotMirrored, NameTaken, "is in no global service: that would be named %s, which is that of %s", name, first)
					return
				}
				add(of, NotMirrored, NameTaken, "is not mirrored: its mirror would be named %s, which is that of %s", name, first)
			})
		}
	}
	t := p.targets[name]
	if t == nil || !t.global() {
		return out
	}
	for _, cluster := range p.clusters {
		of := ref{cluster, t.of.namespace, t.of.name}
		if differs := t.differences[cluster]; len(differs) > 0 {
			add(of, Differs, Settings, "has in the global service %s what %s says of it: its own are %s", t.name, t.authoritativeCluster(), strings.Join(differs, "; "))
		}
		if twice := t.hostnames.duplicates[cluster]; t.shape.headless && len(twice) > 0 {
			add(of, Differs, Hostname, "has in the global service %s a pod of the hostname %s (%d such), as another cluster has: the name stands for both",
				t.name, first(twice), len(twice))
		}
	}
	return out
}

// first returns the first name in sorted order.
func first(names map[string]bool) (name string) {
	for other := range names {
		if name == "" || other < name {
			name = other
		}
	}
	return name
}

// authoritativeCluster returns the cluster that defines a global service.
func (t *target) authoritativeCluster() string {
	for _, cluster := range t.plan.clusters {
		if h := t.perCluster[cluster]; h != nil && h.source != nil {
			return cluster
		}
	}
	return ""
}

// hostnames counts the hostnames of the endpoints of a target.
type hostnames struct {
	counts map[clusterHostname]int
	// clusters is the number of clusters that have a hostname.
	clusters map[string]int
	// duplicates are the hostnames of a cluster that an earlier cluster has, too.
	duplicates map[string]map[string]bool
}

type clusterHostname struct{ hostname, cluster string }

// updateHostname records a change of an endpoint; nil for none.
func (w *work) updateHostname(h *clusterEndpoints, was, is *semaphorev1.Endpoint) {
	if was.GetHostname() == is.GetHostname() {
		return
	}
	w.countHostname(h, was.GetHostname(), -1)
	w.countHostname(h, is.GetHostname(), +1)
}

func (w *work) countHostname(h *clusterEndpoints, hostname string, by int) {
	if hostname == "" {
		return
	}
	t, of := h.target, clusterHostname{hostname, h.cluster}
	if t.hostnames.counts == nil {
		t.hostnames = hostnames{map[clusterHostname]int{}, map[string]int{}, map[string]map[string]bool{}}
	}
	before := t.hostnames.counts[of]
	t.hostnames.counts[of] += by
	if now := before + by; now == 0 {
		delete(t.hostnames.counts, of)
	} else if before != 0 {
		return
	}
	if t.hostnames.clusters[hostname] += by; t.hostnames.clusters[hostname] == 0 {
		delete(t.hostnames.clusters, hostname)
	}
	if by > 0 && t.hostnames.clusters[hostname] < 2 || by < 0 && t.hostnames.clusters[hostname] < 1 {
		return // no other cluster has it
	}
	w.problemsDirty[t.name] = true
	one := false
	for _, cluster := range w.clusters {
		has := t.hostnames.counts[clusterHostname{hostname, cluster}] > 0
		twice := t.hostnames.duplicates[cluster]
		switch {
		case has && one && twice == nil:
			t.hostnames.duplicates[cluster] = map[string]bool{hostname: true}
		case has && one:
			twice[hostname] = true
		default:
			if delete(twice, hostname); len(twice) == 0 {
				delete(t.hostnames.duplicates, cluster)
			}
		}
		one = one || has
	}
}

// unclaim removes a claimant of a name that is too long.
func (p *Plan) unclaim(name string, claimant ref) {
	if p.tooLong[name] = slices.DeleteFunc(p.tooLong[name], func(r ref) bool { return r == claimant }); len(p.tooLong[name]) == 0 {
		delete(p.tooLong, name)
	}
}
