package ctl

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func before(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(noon.Add(-d)) }

// heard is a broker's link to a remote it last heard so long ago.
func heard(cluster string, ago time.Duration) *semaphorev1.LinkStatus {
	return &semaphorev1.LinkStatus{
		Cluster: cluster, Connected: true, Since: before(time.Hour), LastHeard: before(ago),
		Kinds: []*semaphorev1.KindStatus{
			{Kind: "node", Objects: 2, Complete: true, LastHeard: before(ago)},
			{Kind: "service", Objects: 7, Complete: true, LastHeard: before(ago), Limit: 10_000},
		},
	}
}

func broker(links ...*semaphorev1.LinkStatus) *semaphorev1.GetStatusResponse {
	return &semaphorev1.GetStatusResponse{Part: "broker", Cluster: "c1", Ready: true, Now: timestamppb.New(noon), StartedAt: before(time.Hour), Links: links}
}

func TestVerdict(t *testing.T) {
	gone := func(l *semaphorev1.LinkStatus, since time.Duration) *semaphorev1.LinkStatus {
		l.Connected, l.Since, l.LastError = false, before(since), "the connection was cut"
		return l
	}
	never := gone(heard("c9", 0), time.Minute)
	never.LastHeard = nil
	oneKind := heard("c2", time.Second)
	oneKind.Kinds[1].LastHeard = before(40 * time.Second)
	held := heard("c2", time.Second)
	held.Kinds[1].HeldBack, held.Kinds[1].HeldBackSince = 6, before(90*time.Second)
	refusedAndGone := gone(heard("c2", 20*time.Second), 19*time.Second)
	refusedAndGone.Kinds[1].Refused = 2
	of := func(part string, s *semaphorev1.GetStatusResponse) *semaphorev1.GetStatusResponse {
		s.Part = part
		return s
	}
	standby := func(leader string) *semaphorev1.GetStatusResponse {
		s := broker(gone(heard("c2", time.Hour), time.Hour))
		s.Ready, s.Standby, s.Leader = false, true, leader
		s.Nodes = []*semaphorev1.NodeStatus{{Node: "n1"}}
		return s
	}
	for name, test := range map[string]struct {
		status *semaphorev1.GetStatusResponse
		want   string
	}{
		"fresh":          {broker(heard("c2", 2*time.Second), heard("c3", 15*time.Second)), "all is well"},
		"stale":          {broker(heard("c2", 252*time.Second), heard("c3", 0), heard("c4", 0), heard("c5", 0)), "3 of 4 remotes fresh; c2 stale 4m12s: traffic flows on the last known state"},
		"just stale":     {broker(heard("c2", 15001*time.Millisecond)), "0 of 1 remotes fresh; c2 stale 15s: traffic flows on the last known state"},
		"two stale":      {broker(heard("c2", time.Minute), heard("c3", time.Hour)), "0 of 2 remotes fresh; c2 stale 1m0s, c3 stale 1h0m0s: traffic flows on the last known state"},
		"stale and gone": {broker(gone(heard("c2", time.Minute), 50*time.Second)), "0 of 1 remotes fresh; c2 stale 1m0s: traffic flows on the last known state"},
		"just gone":      {broker(gone(heard("c2", 3*time.Second), 2*time.Second)), "c2 not connected for 2s"},
		"never heard":    {broker(never, heard("c3", time.Second)), "1 of 2 remotes fresh; c9 never heard"},
		"one kind":       {broker(oneKind), "1 of 1 remotes fresh; service objects of c2 stale 40s: traffic flows on the last known state"},
		"the brake":      {broker(held), "c2 withdrew 6 service objects, which the brake holds for 1m30s"},
		"refused":        {broker(refusedAndGone), "0 of 1 remotes fresh; c2 stale 20s: traffic flows on the last known state; 2 service objects of c2 refused"},
		// Brokers speak to exporters and agents only when there is something to say.
		"an exporter's broker":     {of("exporter", broker(heard("c2", time.Hour))), "all is well"},
		"an agent's broker":        {of("agent", broker(heard("c1", time.Hour))), "all is well"},
		"a standby":                {standby("broker-7f"), "all is well: a standby"},
		"a standby without leader": {standby(""), "a standby, and no leader is known"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := summary(test.status); got != test.want {
				t.Errorf("%q; want %q", got, test.want)
			}
		})
	}
}

// A broker's status has a line for each kind of each remote, with its age, what is not taken, and its lag.
func TestKindLines(t *testing.T) {
	l := heard("c2", 3*time.Second)
	l.Kinds[0].LastHeard = nil
	service := l.Kinds[1]
	service.Refused, service.HeldBack, service.HeldBackSince = 3, 4, before(5*time.Minute)
	service.LastPropagation = durationpb.New(12 * time.Millisecond)
	service.MedianPropagation = durationpb.New(-2 * time.Millisecond)
	service.HighPropagation = durationpb.New(2340 * time.Millisecond)
	s := broker(l)
	s.Leader = "broker-0"
	var out bytes.Buffer
	must(t, statusTable(&out, s))
	words := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		", leader (broker-0)",
		"CLUSTER KIND AGE OBJECTS REFUSED HELD BACK LAG: LAST MEDIAN HIGH",
		"c2 node never 2 0 0 - - -",
		"c2 service 3s 7/10000 3 4 for 5m0s 12ms -2ms 2.3s",
	} {
		if !strings.Contains(words, want) {
			t.Errorf("the status has no %q:\n%s", want, &out)
		}
	}
	s.Part = "exporter"
	out.Reset()
	must(t, statusTable(&out, s))
	if strings.Contains(out.String(), "LAG") {
		t.Errorf("an exporter has ages:\n%s", &out)
	}
}
