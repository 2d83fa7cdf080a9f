package mesh_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/diagnose/mesh"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// TestOneNameOfSeveralContexts: a cluster says itself what it is called. Where clusters of two contexts say the same,
// as after a backup was restored beside the original, a finding names both contexts, and no command leads to one of
// them by the name. Where one says it, commands lead to its context, also if it has contexts of several users.
func TestOneNameOfSeveralContexts(t *testing.T) {
	asks := broker("c1", "c2")
	asks.Findings = finding.Messages([]finding.Finding{finding.New(finding.NoTunnel, "c2", 1, "node n1")})
	at := func(context string, s *semaphorev1.GetStatusResponse) mesh.Facts {
		if len(s.GetFindings()) == 0 {
			finding.Judge(s)
		}
		return mesh.Facts{Context: context, Server: "https://" + context, Parts: []*semaphorev1.GetStatusResponse{s}}
	}
	command := func(m *mesh.Mesh) string {
		i := slices.IndexFunc(m.Findings, func(f mesh.Finding) bool { return f.Code == "NoTunnel" })
		if i < 0 {
			t.Fatalf("findings %v", m.Findings)
		}
		return m.Findings[i].Command
	}
	one := mesh.Join([]mesh.Facts{at("prod-1", asks), at("prod-2", broker("c2", "c1"))})
	if got := command(one); !strings.Contains(got, "--context prod-2") || strings.Contains(one.Verdict, "c2, c2") ||
		slices.ContainsFunc(one.Findings, func(f mesh.Finding) bool { return f.Code == string(finding.ClusterNameTaken) }) {
		t.Errorf("one context of the name: %q, %v", got, one.Findings)
	}
	admin, user := at("prod-2", broker("c2", "c1")), at("user", broker("c2", "c1"))
	user.Server = admin.Server
	same := mesh.Join([]mesh.Facts{at("prod-1", asks), admin, user})
	if got := command(same); !strings.Contains(got, "--context prod-2") || slices.ContainsFunc(same.Findings,
		func(f mesh.Finding) bool { return f.Code == string(finding.ClusterNameTaken) }) {
		t.Errorf("two users of one cluster: %q, %v", got, same.Findings)
	}
	two := mesh.Join([]mesh.Facts{at("prod-1", asks), at("prod-2", broker("c2", "c1")), at("copy", broker("c2", "c1"))})
	if got := command(two); strings.Contains(got, "prod-2") || strings.Contains(got, "copy") {
		t.Errorf("two contexts of the name: the command leads to one of them: %q", got)
	}
	i := slices.IndexFunc(two.Findings, func(f mesh.Finding) bool { return f.Code == string(finding.ClusterNameTaken) })
	if i < 0 || two.Well {
		t.Fatalf("not reported: %v", two.Findings)
	}
	if f := two.Findings[i]; f.Level != "error" || !strings.Contains(strings.Join(f.First, ""), "prod-2, copy") {
		t.Errorf("reported as %v", f)
	}
}
