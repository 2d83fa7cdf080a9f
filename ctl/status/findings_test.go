package status

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/diagnose/mesh"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// TestFindings: findings are printed without the tables of status, and as a list for programs.
func TestFindings(t *testing.T) {
	m := &mesh.Mesh{Clusters: []mesh.Cluster{{Name: "c2"}, {Name: "c1"}}}
	var out bytes.Buffer
	must(t, printFindings(&out, m, "table"))
	m.Findings = []mesh.Finding{{Code: "Stale", Level: "error", Meaning: "nothing was heard of a remote",
		Side: "remote-cluster", Command: "semaphorectl status --context c2", Cluster: "c2", At: "c1",
		Part: "broker", Count: 1, First: []string{"for 5m\x1b[2J"}}}
	must(t, printFindings(&out, m, "table"))
	ctltest.Golden(t, "findings", out.String())
	out.Reset()
	must(t, printFindings(&out, m, "json"))
	var read struct{ Findings []mesh.Finding }
	must(t, json.Unmarshal(out.Bytes(), &read))
	if len(read.Findings) != 1 || read.Findings[0].Code != "Stale" {
		t.Errorf("%+v", read)
	}
}
