package config

import (
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// LeaderElection configures the election of a leader among the replicas of a broker or exporter. The election uses a
// Lease (coordination.k8s.io/v1) in the cluster in which the replicas run.
type LeaderElection struct {
	// Enabled may be false only with a single replica: two replicas that both work overwrite each other's objects.
	Enabled bool `json:"enabled"`
	// Namespace of the Lease; that of the pod when empty.
	Namespace string `json:"namespace"`
	// Lease is the name of the Lease. All replicas use the same, and nothing else uses it.
	Lease string `json:"lease"`
	// Duration is how long standbys wait for a leader that crashed. A leader that cannot renew the Lease stops its work
	// after two thirds of it.
	Duration Duration `json:"duration"`
	// Renew is the interval of renewals. Tests set it, for a standby that need not wait; 0 makes it 2/15 of Duration.
	Renew time.Duration `json:"-"`
}

// A Lease's spec.leaseDurationSeconds is in whole seconds. Below 5 s, a restart of the apiserver costs the leader its
// Lease; with minutes, a failover takes too long.
const (
	minLease = 5 * time.Second
	maxLease = 10 * time.Minute
)

func leaderElection(lease string) LeaderElection {
	return LeaderElection{Enabled: true, Lease: lease, Duration: Duration{Duration: 15 * time.Second}}
}

func (l *LeaderElection) complete(p *problems, field string) {
	if l.Namespace != "" {
		p.addEach(field+".namespace", validation.IsDNS1123Label(l.Namespace), "%q", l.Namespace)
	}
	p.addEach(field+".lease", validation.IsDNS1123Subdomain(l.Lease), "%q", l.Lease)
	d := l.Duration.Duration
	l.Duration.check(p, field+".duration", d >= minLease && d <= maxLease && d%time.Second == 0,
		"whole seconds from %s to %s", minLease, maxLease)
}
