package finding

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func before(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(noon.Add(-d)) }

// heard returns a broker's link to a remote whose last message is this old.
func heard(cluster string, ago time.Duration) *semaphorev1.LinkStatus {
	return &semaphorev1.LinkStatus{
		Cluster: cluster, Connected: true, Since: before(time.Hour), LastHeard: before(ago),
		Kinds: []*semaphorev1.KindStatus{
			{Kind: semaphorev1.Kind_KIND_NODE, Objects: 2, Complete: true, LastHeard: before(ago), AwaitedSince: before(ago)},
			{Kind: semaphorev1.Kind_KIND_SERVICE, Objects: 7, Complete: true, LastHeard: before(ago),
				AwaitedSince: before(ago), Limit: 10_000},
		},
	}
}

func broker(links ...*semaphorev1.LinkStatus) *semaphorev1.GetStatusResponse {
	return &semaphorev1.GetStatusResponse{Part: "broker", Cluster: "c1", Ready: true, Now: timestamppb.New(noon),
		StartedAt: before(time.Hour), Links: links}
}

func TestVerdict(t *testing.T) {
	gone := func(l *semaphorev1.LinkStatus, since time.Duration) *semaphorev1.LinkStatus {
		l.Connected, l.Since, l.LastError = false, before(since), "the connection was cut"
		return l
	}
	never := gone(heard("c9", 0), time.Minute)
	never.LastHeard = nil
	oneKind := heard("c2", time.Second)
	oneKind.Kinds[1].LastHeard, oneKind.Kinds[1].AwaitedSince = before(time.Hour), before(40*time.Second)
	unexported := heard("c2", time.Second)
	unexported.Kinds[1].LastHeard, unexported.Kinds[1].AwaitedSince = before(time.Hour), nil
	held := heard("c2", time.Second)
	held.Kinds[1].Retained, held.Kinds[1].RetainedSince = 6, before(90*time.Second)
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
	talks := broker(heard("c2", 252*time.Second), heard("c3", 0), heard("c4", 0), heard("c5", 0))
	talks.Tunnels = []*semaphorev1.TunnelsStatus{{Cluster: "c2", Nodes: 3, NodesTalking: 3}}
	silent := broker(heard("c2", 252*time.Second))
	silent.Tunnels = []*semaphorev1.TunnelsStatus{{Cluster: "c2", Nodes: 3, NodesSilent: 3}}
	some, pair := broker(heard("c2", time.Second)), broker(heard("c2", time.Second))
	some.Tunnels = []*semaphorev1.TunnelsStatus{{Cluster: "c2", Nodes: 3, NodesTalking: 3, NodesSilent: 1}}
	pair.SilentPairsTotal, pair.SilentPairs = 1, []*semaphorev1.SilentPair{{Node: "n1", Cluster: "c2", RemoteNode: "m2",
		Since: before(time.Minute), Reason: "no answer to handshakes"}}
	for name, test := range map[string]struct {
		status *semaphorev1.GetStatusResponse
		want   string
	}{
		"fresh": {broker(heard("c2", 2*time.Second), heard("c3", 15*time.Second)), "all is well"},
		"stale": {talks,
			"3 of 4 remotes fresh; c2 stale 4m12s, tunnels alive: traffic flows on the last known state"},
		"stale and silent":   {silent, "0 of 1 remotes fresh; c2 stale 4m12s, no tunnel answers"},
		"one node is silent": {some, "all is well"},
		"one pair is silent": {pair, "n1 → c2/m2: no answer to handshakes"},
		"the own exporter is no remote": {broker(heard("c1", 0), heard("c2", time.Minute)),
			"0 of 1 remotes fresh; c2 stale 1m0s: the last known state stays in use"},
		"just stale": {broker(heard("c2", 15001*time.Millisecond)),
			"0 of 1 remotes fresh; c2 stale 15s: the last known state stays in use"},
		"two stale": {broker(heard("c2", time.Minute), heard("c3", time.Hour)),
			"0 of 2 remotes fresh; c2 stale 1m0s: the last known state stays in use; c3 stale 1h0m0s: the last known state " +
				"stays in use"},
		"stale and gone": {broker(gone(heard("c2", time.Minute), 50*time.Second)),
			"0 of 1 remotes fresh; c2 stale 1m0s: the last known state stays in use"},
		"just gone":    {broker(gone(heard("c2", 3*time.Second), 2*time.Second)), "c2 not connected for 2s"},
		"never heard":  {broker(never, heard("c3", time.Second)), "1 of 2 remotes fresh; c9 never heard"},
		"one kind":     {broker(oneKind), "1 of 1 remotes fresh; service objects of c2 stale 40s"},
		"not exported": {broker(unexported), "all is well"},
		"the brake":    {broker(held), "c2 withdrew 6 service objects, which the brake retains for 1m30s"},
		"refused": {broker(refusedAndGone),
			"0 of 1 remotes fresh; 2 service objects of c2 refused; c2 stale 20s: the last known state stays in use"},
		// Brokers send exporters and agents something only when there is news.
		"an exporter's broker":     {of("exporter", broker(heard("c2", time.Hour))), "all is well"},
		"an agent's broker":        {of("agent", broker(heard("c1", time.Hour))), "all is well"},
		"a standby":                {standby("broker-7f"), "all is well: a standby"},
		"a standby without leader": {standby(""), "a standby, and no leader is known"},
	} {
		t.Run(name, func(t *testing.T) {
			Judge(test.status)
			if got := Summary(test.status); got != test.want {
				t.Errorf("%q; want %q", got, test.want)
			}
		})
	}
}

// TestFindingsAreBounded: hostile texts of remotes and agents reach neither a terminal nor a log unchanged, and of
// 10,000 findings with one code, the count and the first three are shown.
func TestFindingsAreBounded(t *testing.T) {
	hostile := "evil\x1b[2J\u202e\r\n" + strings.Repeat("x", 10_000) + "\xff"
	s := broker()
	for i := range 10_000 {
		s.Nodes = append(s.Nodes, &semaphorev1.NodeStatus{Node: fmt.Sprintf("n%d%s", i, hostile)})
	}
	for i := range 500 {
		l := heard(fmt.Sprintf("c%d%s", i, hostile), time.Hour)
		l.LastError = hostile
		s.Links = append(s.Links, l)
	}
	var found []Finding
	for range 10_000 {
		found = append(found, New(OverLimit, "c2", 1, hostile, hostile, hostile, hostile))
		found = append(found, Findings([]*semaphorev1.Finding{{Code: hostile, Cluster: hostile, Count: 1 << 60,
			First: []string{hostile, hostile, hostile, hostile}, Level: 99, Command: hostile}}, hostile)...)
	}
	Judge(s, found...)
	counts := map[string]uint64{}
	for _, f := range s.GetFindings() {
		counts[f.GetCode()] += f.GetCount()
		if len(f.GetFirst()) > 3 {
			t.Errorf("%s shows %d of its objects", f.GetCode(), len(f.GetFirst()))
		}
		for _, field := range append(f.GetFirst(), f.GetCode(), f.GetCluster(), f.GetCommand(), Text(f)) {
			if strings.ContainsFunc(field, func(r rune) bool { return !unicode.IsPrint(r) }) || len(field) > 1000 {
				t.Fatalf("a hostile string is shown: %.200q", field)
			}
		}
	}
	if counts["OverLimit"] != 10_000 || counts["NoAgent"] != 10_000 || counts["Stale"] != 500 ||
		counts["UnknownCode"] < 10_000 {
		t.Errorf("the counts: %v", counts)
	}
	if n := proto.Size(&semaphorev1.GetStatusResponse{Findings: s.GetFindings()}); n > 512<<10 {
		t.Errorf("the findings have %d bytes", n)
	}
	if text := Summary(s); len(text) > 2000 || !strings.Contains(text, "more findings") && len(s.GetFindings()) > 5 {
		t.Errorf("the verdict has %d bytes: %.300s", len(text), text)
	}
}

// TestLevelsAndSidesHaveValues: every level and side has a value in messages, with the same word.
func TestLevelsAndSidesHaveValues(t *testing.T) {
	for _, d := range All() {
		if d.Level == OK || d.Level == NotChecked {
			continue // no part sends these
		}
		m := Messages([]Finding{New(d.Code, "", 1)})[0]
		if semaphorev1.LevelName(m.GetLevel()) != string(d.Level) || m.GetLevel() == semaphorev1.Level_LEVEL_UNSPECIFIED ||
			semaphorev1.SideName(m.GetSide()) != string(d.Side) {
			t.Errorf("%s: level %v of %q, side %v of %q", d.Code, m.GetLevel(), d.Level, m.GetSide(), d.Side)
		}
	}
	if unknown := semaphorev1.LevelName(99); unknown != string(Error) {
		t.Errorf("a level that is not known is %q", unknown)
	}
}
