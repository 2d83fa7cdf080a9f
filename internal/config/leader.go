package config

import (
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// LeaderElection says how the replicas of a broker or exporter agree on which of them works: by a Lease
// (coordination.k8s.io/v1) in the cluster that they run in.
type LeaderElection struct {
	// Enabled is off where there is only ever one: two that both work write against each other.
	Enabled bool `json:"enabled"`
	// Namespace of the Lease; that of the pod when empty.
	Namespace string `json:"namespace"`
	// Lease is the Lease's name. All replicas have the same, and nobody else has it.
	Lease string `json:"lease"`
	// Duration is how long a leader that went without a word keeps the others waiting. A leader that
	// cannot renew the lease ends its work after two thirds of it.
	Duration Duration `json:"duration"`
}

// A Lease's spec.leaseDurationSeconds is in whole seconds. Under 5 s an apiserver that restarts costs the leader
// its place, and after minutes nobody would wait for a standby.
const (
	minLease = 5 * time.Second
	maxLease = 10 * time.Minute
)

// leaderElection is what a file that does not mention it means.
func leaderElection(lease string) LeaderElection {
	return LeaderElection{Enabled: true, Lease: lease, Duration: Duration{Duration: 15 * time.Second}}
}

func (l *LeaderElection) complete(p *problems, field string) {
	if l.Namespace != "" {
		for _, e := range validation.IsDNS1123Label(l.Namespace) {
			p.add(field+".namespace", "%q: %s", l.Namespace, e)
		}
	}
	for _, e := range validation.IsDNS1123Subdomain(l.Lease) {
		p.add(field+".lease", "%q: %s", l.Lease, e)
	}
	l.Duration.check(p, field+".duration")
	if d := l.Duration.Duration; l.Duration.invalid == "" && (d < minLease || d > maxLease || d%time.Second != 0) {
		p.add(field+".duration", "%s: use whole seconds from %s to %s", d, minLease, maxLease)
	}
}
