package docs_test

import (
	"go/ast"
	"regexp"
	"strings"
	"testing"
)

// TestOnlyInTestAll: the table of docs/faults.md names each test that only make test-all runs, and no other.
func TestOnlyInTestAll(t *testing.T) {
	_, section, found := strings.Cut(read(t, "docs/faults.md"), "\n## Only in `make test-all`\n")
	if !found {
		t.Fatal("faults.md has no section on what only make test-all runs")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	listed := map[string]bool{}
	row := regexp.MustCompile(`(?m)^\| ([^|]*) \|`)
	name := regexp.MustCompile("`(Test[A-Za-z0-9_]*)`")
	for _, r := range row.FindAllStringSubmatch(section, -1) {
		for _, n := range name.FindAllStringSubmatch(r[1], -1) {
			listed[n[1]] = true
		}
	}
	for test, file := range onlyAll(t) {
		if !listed[test] {
			t.Errorf("%s (%s) runs only in make test-all, and faults.md does not list it", test, file)
		}
		delete(listed, test)
	}
	for test := range listed {
		t.Errorf("faults.md lists %s, which make test runs", test)
	}
}

// onlyAll returns the tests that call tier.OnlyAll, with their files.
func onlyAll(t *testing.T) map[string]string {
	tests := map[string]string{}
	for _, path := range tracked(t, "*_test.go") {
		_, file := parsed(t, path)
		for _, decl := range file.Decls {
			function, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(function, func(n ast.Node) bool {
				if call, ok := n.(*ast.SelectorExpr); ok && exprText(call) == "tier.OnlyAll" {
					if !strings.HasPrefix(function.Name.Name, "Test") {
						t.Errorf("%s: %s calls tier.OnlyAll; a test calls it itself, so that it can be listed", path,
							function.Name.Name)
					}
					tests[function.Name.Name] = path
				}
				return true
			})
		}
	}
	return tests
}
