package config

import (
	"strings"
	"testing"
	"time"
)

func TestLeaderElection(t *testing.T) {
	parse := func(text string) (LeaderElection, error) {
		c, err := Parse[Broker]([]byte(`{cluster: c1, localSubnets: [10.1.0.0/16]` + text + `}`))
		if err != nil {
			return LeaderElection{}, err
		}
		return c.LeaderElection, nil
	}
	on := LeaderElection{Enabled: true, Lease: "semaphore-broker-leader", Duration: Duration{Duration: 15 * time.Second}}
	off, fast := on, on
	off.Enabled = false
	fast.Duration.Duration, fast.Namespace, fast.Lease = 5*time.Second, "federation", "broker.c1"
	for text, want := range map[string]LeaderElection{
		``:                     on,
		`, leaderElection: {}`: on,
		`, leaderElection: {duration: null, lease: null}`:                           on,
		`, leaderElection: {enabled: true, duration: 15s}`:                          on,
		`, leaderElection: {enabled: false}`:                                        off,
		`, leaderElection: {namespace: federation, lease: broker.c1, duration: 5s}`: fast,
	} {
		if got, err := parse(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		`{duration: 4s}`:         "leaderElection.duration: 4s: use whole seconds from 5s to 10m0s",
		`{duration: 0s}`:         "leaderElection.duration: 0s: use whole seconds",
		`{duration: -15s}`:       "leaderElection.duration: -15s: use whole seconds",
		`{duration: 11m}`:        "leaderElection.duration: 11m0s: use whole seconds",
		`{duration: 5500ms}`:     "leaderElection.duration: 5.5s: use whole seconds",
		`{duration: soon}`:       `leaderElection.duration: "soon" is no duration`,
		`{duration: 15}`:         "leaderElection.duration: 15 is no duration",
		`{namespace: a.b}`:       `leaderElection.namespace: "a.b": `,
		`{lease: ""}`:            `leaderElection.lease: "": `,
		`{lease: Broker}`:        `leaderElection.lease: "Broker": `,
		`{enabled: "perhaps"}`:   "leaderElection.enabled: found string, want true or false",
		`{renewDeadline: "10s"}`: `unknown field "leaderElection.renewDeadline"`,
	} {
		if got, err := parse(`, leaderElection: ` + text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v; want an error with %q", text, got, err, want)
		}
	}
}
