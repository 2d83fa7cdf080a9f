package coredns

import (
	"strings"
	"testing"
)

// TestSection: semaphore's section is added, changed and removed, and the rest of the Corefile does not change.
func TestSection(t *testing.T) {
	for _, before := range []string{"", ".:53 {\n}\n", ".:53 {\n}", ".:53 {\n}\n\n# the end\n"} {
		with := WithSection(before, "cluster.c2 {\n}\n")
		if got, found := Section(with); !found || got != "cluster.c2 {\n}\n" || !strings.HasPrefix(with, before) {
			t.Errorf("%q: %q", before, with)
		}
		// A user adds a block after it.
		other := WithSection(with+"example.org {\n}\n", "cluster.c3 {\n}\n")
		if got, _ := Section(other); got != "cluster.c3 {\n}\n" || strings.Contains(other, "cluster.c2") {
			t.Errorf("%q: changed %q", before, other)
		}
		if after := WithSection(with, ""); after != before {
			t.Errorf("%q: after the end %q", before, after)
		}
		if after := WithSection(other, ""); after != before+"example.org {\n}\n" {
			t.Errorf("%q: after the end %q", before, after)
		}
		if again := WithSection(with, "cluster.c2 {\n}\n"); again != with {
			t.Errorf("%q: the same again makes %q of %q", before, again, with)
		}
		if WithSection(before, "") != before {
			t.Errorf("%q: without a section it is changed", before)
		}
	}
}

func TestImport(t *testing.T) {
	for corefile, want := range map[string]string{
		".:53 {\n    import custom/*.override\n    kubernetes cluster.local in-addr.arpa {\n    }\n}\nimport " +
			"custom/*.server\n": "custom/*.server",
		".:53 {\n    import custom/*.override\n}\n":        "",
		"# import custom/*.server\n.:53 {\n}\n":            "",
		"import snippet\n.:53 {\n}\n":                      "",
		"import /etc/coredns/custom/*.server\n.:53 {\n}\n": "/etc/coredns/custom/*.server",
	} {
		if got, found := Import(corefile); got != want || found != (want != "") {
			t.Errorf("%q: %q, want %q", corefile, got, want)
		}
	}
	if got := FileOf("custom/*.server"); got != "semaphore.server" {
		t.Error(got)
	}
	for corefile, want := range map[string]string{
		".:53 {\n    kubernetes example.org in-addr.arpa {\n    }\n}\n": "example.org",
		".:53 {\n    kubernetes cluster.c1. {\n    }\n}\n":              "cluster.c1",
		".:53 {\n}\n": "cluster.local",
	} {
		if got := ClusterDomain(corefile); got != want {
			t.Errorf("%q: %q, want %q", corefile, got, want)
		}
	}
}
