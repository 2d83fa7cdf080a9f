package docs_test

import (
	"go/ast"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// nameOfTest is a test, benchmark or fuzz test, and an ellipsis if the name is the beginning of several.
	nameOfTest = regexp.MustCompile(`\b(?:Test|Benchmark|Fuzz)[A-Z][A-Za-z0-9_]*(?:…|` + "`…" + `)?`)
	// patternOfTests is the value of -run, -bench or -fuzz.
	patternOfTests = regexp.MustCompile(`--?(?:run|bench|fuzz)[ =]'?((?:\^?\(?)(?:Test|Benchmark|Fuzz)[^\s'` + "`" + `]*)`)
	// codeSpan is text in backticks, with the ellipsis that may follow.
	codeSpan = regexp.MustCompile("`[^`]+`…?")
	// namesOfPackage are names, and the package of all of them.
	namesOfPackage = regexp.MustCompile("((?:`(?:Test|Benchmark|Fuzz)[A-Z]\\w*`(?:,\\s+)?)+)\\s+\\(([a-z][\\w/]*)\\)")
)

// TestNamesOfTests: the tests, benchmarks and fuzz tests that documents and the Makefile name exist, and are in the
// package that is named with them.
func TestNamesOfTests(t *testing.T) {
	packages := testsOfTheTree(t)
	names := slices.Collect(maps.Keys(packages))
	if len(names) < 1000 {
		t.Fatalf("%d tests were found", len(names))
	}
	named := 0
	for _, document := range tracked(t, "README.md", "CONTRIBUTING.md", "docs/*.md", "test/sim/README.md") {
		all, inBlock := lines(t, document), false
		for _, match := range namesOfPackage.FindAllStringSubmatch(strings.Join(all, "\n"), -1) {
			for _, name := range nameOfTest.FindAllString(match[1], -1) {
				if in := packages[name]; in != nil && !slices.Contains(in, match[2]) {
					t.Errorf("%s: %s is not in %s, but in %s", document, name, match[2], in)
				}
			}
		}
		for n, line := range all {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				inBlock = !inBlock
			}
			for _, match := range patternOfTests.FindAllStringSubmatch(line, -1) {
				named++
				if pattern, err := regexp.Compile(match[1]); err != nil || !slices.ContainsFunc(names, pattern.MatchString) {
					t.Errorf("%s:%d: no test matches %q", document, n+1, match[1])
				}
			}
			if inBlock {
				continue // an example, or the output of a command
			}
			for _, span := range codeSpan.FindAllString(patternOfTests.ReplaceAllString(line, ""), -1) {
				for _, name := range nameOfTest.FindAllString(span, -1) {
					named++
					if !isNameOfTest(names, name) {
						t.Errorf("%s:%d: there is no %s", document, n+1, strings.Replace(name, "`", "", 1))
					}
				}
			}
		}
	}
	if named < 200 {
		t.Errorf("documents name %d tests; the search does not work", named)
	}

	for _, name := range nameOfTest.FindAllString(read(t, "Makefile"), -1) {
		if !isNameOfTest(names, name+"…") {
			t.Errorf("Makefile: no test begins with %s", name)
		}
	}
}

// isNameOfTest reports whether a test has a name or, if it ends in an ellipsis, begins with it.
func isNameOfTest(names []string, name string) bool {
	if beginning, ok := strings.CutSuffix(name, "…"); ok {
		beginning = strings.TrimSuffix(beginning, "`")
		return slices.ContainsFunc(names, func(one string) bool { return strings.HasPrefix(one, beginning) })
	}
	return slices.Contains(names, name)
}

// testsOfTheTree are the names of all tests, benchmarks and fuzz tests, each with its packages.
func testsOfTheTree(t *testing.T) map[string][]string {
	t.Helper()
	names := map[string][]string{}
	for _, file := range tracked(t, "*_test.go") {
		_, parsed := parsed(t, file)
		for _, decl := range parsed.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && nameOfTest.FindString(f.Name.Name) == f.Name.Name {
				names[f.Name.Name] = append(names[f.Name.Name], path.Dir(file))
			}
		}
	}
	return names
}
