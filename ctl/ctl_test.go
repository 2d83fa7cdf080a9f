package ctl

import (
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/program"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

func TestMain(m *testing.M) {
	beProgram()
	ctltest.Main(m, Command)
}

func TestWrongUse(t *testing.T) {
	ctltest.Refuses(t, map[string]string{
		"status --socket /nowhere.sock":                                "no such file",
		"status --socket a --address b":                                "none of the others can be",
		"status --address 127.0.0.1:1 --part agent":                    "an agent is asked through its socket",
		"status --address 127.0.0.1:1 --cluster C1":                    "no cluster name",
		"status --address 127.0.0.1:1 --cluster c1 --tls-dir /nowhere": "--tls-dir /nowhere",
		"status -o xml":                               "use table, wide, json, yaml, svg, dot or mermaid",
		"trace --watch -o xml":                        "use table, json or yaml",
		"trace --watch -o yaml":                       "use json, a document for each line",
		"status -o svg --socket /nowhere.sock":        "pictures are for clusters",
		"status -o svg --watch --context c1":          "--web has a live picture",
		"status --open --context c1":                  "it is for --web",
		"trace --kind node service/shop/echo":         "they are for --history and --watch",
		"trace":                                       "give one OBJECT",
		"check --pre --traffic":                       "give one of them",
		"check --clean":                               "they are for --traffic",
		"unlink c3 --context c1":                      "give --force",
		"unlink --force --context c1":                 "give the one CLUSTER",
		"link --context c1,c2 -o yaml":                "it is for --dry-run=client",
		"drain cluster c2 --dry-run=server":           "use client or none",
		"status --all-contexts --context c1":          "without --context",
		"status --all-contexts --kubeconfig /nowhere": "stat /nowhere",
		"get services a/b/c":                          "use NAMESPACE or NAMESPACE/NAME",
		"pki init --dir x":                            `"cluster" not set`,
		"coredns --kubeconfig /nowhere":               "how to reach the apiserver",
		"coredns --config a --context b":              "give one of them",
		"coredns --config /nowhere":                   "open /nowhere",
		"coredns --config a --cluster-domain a_b":     "--cluster-domain",
		"status extra":                                "unknown command",
	})
}

// TestUnknownVerbs: a verb that does not exist is wrong use under each command, and the error names those that exist.
func TestUnknownVerbs(t *testing.T) {
	parents := 0
	for _, cmd := range all(Command()) {
		if !cmd.HasSubCommands() || !cmd.HasParent() {
			continue
		}
		parents++
		path := strings.Fields(cmd.CommandPath())[1:]
		if out, code, err := ctltest.Run(t, path...); code != 0 || !strings.Contains(out, "Usage:") {
			t.Errorf("%v: exit code %d, %v, want its help\n%s", path, code, err, out)
		}
		_, code, err := ctltest.Run(t, append(path, "nonsense")...)
		if code != 1 || err == nil || !strings.Contains(err.Error(), "nonsense") {
			t.Errorf("%v nonsense: exit code %d, %v", path, code, err)
			continue
		}
		for _, sub := range cmd.Commands() {
			if !strings.Contains(err.Error(), sub.Name()) {
				t.Errorf("%v nonsense: %v does not name %s", path, err, sub.Name())
			}
		}
	}
	if parents < 5 {
		t.Errorf("%d commands have verbs, want get, drain, undrain, pki and completion at least", parents)
	}
}

func TestVersion(t *testing.T) {
	if out, _, err := ctltest.Run(t, "version"); err != nil || out != program.Version+"\n" {
		t.Errorf("%q %v", out, err)
	}
}
