package mirror

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kube-semaphore/semaphore/broker/problem"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// The reasons of problems.
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

// Problems are the services of clusters with which something is wrong.
func (p *Plan) Problems() *problem.Set { return &p.problems }

// problemsOf are those of the services that want a name.
func (p *Plan) problemsOf(name string) (out []problem.Problem) {
	add := func(r ref, reason, code, format string, args ...any) {
		out = append(out, problem.Problem{
			Cluster: r.cluster, Object: r.namespace + "/" + r.name, Reason: reason, Code: code,
			Text: fmt.Sprintf("service %s/%s of cluster %s ", r.namespace, r.name, r.cluster) + fmt.Sprintf(format, args...),
		})
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
		if differs := t.clashes[cluster]; len(differs) > 0 {
			add(of, Differs, Settings, "has in the global service %s what %s says of it: its own are %s", t.name, t.decides(), strings.Join(differs, "; "))
		}
		if twice := t.hosts.twice[cluster]; t.shape.headless && len(twice) > 0 {
			add(of, Differs, Hostname, "has in the global service %s a pod of the hostname %s (%d such), as another cluster has: the name stands for both",
				t.name, first(twice), len(twice))
		}
	}
	return out
}

// first is the first of some names.
func first(names map[string]bool) (name string) {
	for other := range names {
		if name == "" || other < name {
			name = other
		}
	}
	return name
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

// hosts are the hostnames of the endpoints of a target, counted as endpoints come and go.
type hosts struct {
	counts map[hostOf]int
	// clusters is how many have a hostname.
	clusters map[string]int
	// twice are the hostnames that a cluster has and one before it has too.
	twice map[string]map[string]bool
}

type hostOf struct{ hostname, cluster string }

// host takes note of an endpoint of a share that was and is; nil for none.
func (w *work) host(h *share, was, is *semaphorev1.Endpoint) {
	if was.GetHostname() == is.GetHostname() {
		return
	}
	w.countHost(h, was.GetHostname(), -1)
	w.countHost(h, is.GetHostname(), +1)
}

func (w *work) countHost(h *share, hostname string, by int) {
	if hostname == "" {
		return
	}
	t, of := h.target, hostOf{hostname, h.cluster}
	if t.hosts.counts == nil {
		t.hosts = hosts{map[hostOf]int{}, map[string]int{}, map[string]map[string]bool{}}
	}
	before := t.hosts.counts[of]
	t.hosts.counts[of] += by
	if now := before + by; now == 0 {
		delete(t.hosts.counts, of)
	} else if before != 0 {
		return
	}
	if t.hosts.clusters[hostname] += by; t.hosts.clusters[hostname] == 0 {
		delete(t.hosts.clusters, hostname)
	}
	if by > 0 && t.hosts.clusters[hostname] < 2 || by < 0 && t.hosts.clusters[hostname] < 1 {
		return // nobody else has it
	}
	w.troubled[t.name] = true
	one := false
	for _, cluster := range w.clusters {
		has := t.hosts.counts[hostOf{hostname, cluster}] > 0
		twice := t.hosts.twice[cluster]
		switch {
		case has && one && twice == nil:
			t.hosts.twice[cluster] = map[string]bool{hostname: true}
		case has && one:
			twice[hostname] = true
		default:
			if delete(twice, hostname); len(twice) == 0 {
				delete(t.hosts.twice, cluster)
			}
		}
		one = one || has
	}
}

// unclaim forgets a claimant of a name that the API would not take.
func (p *Plan) unclaim(name string, claimant ref) {
	if p.tooLong[name] = slices.DeleteFunc(p.tooLong[name], func(r ref) bool { return r == claimant }); len(p.tooLong[name]) == 0 {
		delete(p.tooLong, name)
	}
}
