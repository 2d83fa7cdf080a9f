package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestTable: each fault of mutations.txt can be planted, and each test that it names exists. make mutations plants all.
func TestTable(t *testing.T) {
	const root = "../.."
	all := testkit.Value(parse(table))(t)
	for _, m := range all {
		code, err := os.ReadFile(filepath.Join(root, m.file))
		if err != nil {
			t.Errorf("%s: %v", m.fault, err)
			continue
		}
		if n := strings.Count(string(code), m.old); n != 1 {
			t.Errorf("%s: %s has %q %d times; want once", m.fault, m.file, m.old, n)
		}
		for _, named := range m.tests {
			dir, test, _ := strings.Cut(named, "#")
			files := testkit.Value(filepath.Glob(filepath.Join(root, dir, "*_test.go")))(t)
			found := false
			for _, file := range files {
				text := testkit.Value(os.ReadFile(file))(t)
				found = found || regexp.MustCompile(`(?m)^func `+regexp.QuoteMeta(test)+`\(`).Match(text)
			}
			if !found {
				t.Errorf("%s: there is no test %s in %s", m.fault, test, dir)
			}
		}
	}
	if len(all) < 100 {
		t.Errorf("%d faults", len(all))
	}
}
