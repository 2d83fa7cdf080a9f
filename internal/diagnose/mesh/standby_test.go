package mesh_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/diagnose/mesh"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// TestOnlyStandbysAnswered: where only standbys answered, what their leaders know was not asked, and each leader that
// does not answer has a finding that says why. A standby without a leader says that nobody leads, and there is nobody
// to ask. On the page of a standby nobody asked its leader.
func TestOnlyStandbysAnswered(t *testing.T) {
	facts := mesh.Facts{Context: "prod-1", Unreached: map[string]string{"broker": "exec in its pod: no route to host",
		"exporter": "its pod does not run"}}
	for _, part := range []string{"broker", "exporter"} {
		s := &semaphorev1.GetStatusResponse{Part: part, Cluster: "c1", SoftwareVersion: "v1.2.3", Standby: true,
			Leader: "semaphore-" + part + "-a", StartedAt: before(1), Now: timestamppb.New(noon)}
		finding.Judge(s)
		facts.Parts = append(facts.Parts, s)
	}
	m := mesh.Join([]mesh.Facts{facts})
	if want := "0 of 0 remotes fresh; c1: the leading broker does not answer: exec in its pod: no route to host; " +
		"c1: the leading exporter does not answer: its pod does not run"; m.Well || m.Verdict != want {
		t.Errorf("well %t: %s", m.Well, m.Verdict)
	}
	for _, f := range m.Findings {
		if f.Code != string(finding.Unreached) || !strings.Contains(f.Command, "--context prod-1 ") {
			t.Errorf("%s: %s", f.Code, f.Command)
		}
	}
	if m := mesh.Join([]mesh.Facts{{Parts: facts.Parts}}); len(m.Findings) > 0 {
		t.Errorf("the page of a standby has %+v", m.Findings)
	}
	for _, s := range facts.Parts {
		s.Leader = ""
		finding.Judge(s)
	}
	m = mesh.Join([]mesh.Facts{facts})
	for _, f := range m.Findings {
		if f.Code != string(finding.NoLeader) {
			t.Errorf("%s: %s", f.Code, f.First)
		}
	}
	if len(m.Findings) != 2 {
		t.Errorf("%d findings, want one of each part", len(m.Findings))
	}
}
