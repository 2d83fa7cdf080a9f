// Package docs_test checks the documents themselves.
package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`^#+ +(.*)$`)
	anchor  = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
	markup  = regexp.MustCompile("\\[([^\\]]*)\\]\\([^)]*\\)|[`*]")
)

// TestLinks: each relative link of each document leads to a file of this repository, and to a heading of it where it
// names one.
func TestLinks(t *testing.T) {
	links := 0
	for _, document := range tracked(t, "*.md") {
		for n, line := range lines(t, document) {
			for _, match := range link.FindAllStringSubmatch(line, -1) {
				target, section, _ := strings.Cut(match[1], "#")
				if strings.Contains(target, ":") {
					continue
				}
				links++
				file := document
				if target != "" {
					file = filepath.Join(filepath.Dir(document), target)
				}
				if _, err := os.Stat(filepath.Join("..", file)); err != nil {
					t.Errorf("%s:%d: %s: there is no %s", document, n+1, match[1], file)
				} else if section != "" && !sections(t, file)[section] {
					t.Errorf("%s:%d: %s: %s has no section #%s", document, n+1, match[1], file, section)
				}
			}
		}
	}
	if links < 100 {
		t.Errorf("%d links were found, where there are hundreds", links)
	}
}

// tracked are the files of the repository that git's patterns match.
func tracked(t *testing.T, patterns ...string) []string {
	t.Helper()
	list := exec.Command("git", append([]string{"-C", "..", "ls-files"}, patterns...)...)
	return strings.Fields(string(testkit.Value(list.Output())(t)))
}

// product are the Go files of the product without tests.
func product(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(tracked(t, "agent/*.go", "broker/*.go", "ctl/*.go", "exporter/*.go", "internal/*.go"),
		func(file string) bool { return strings.HasSuffix(file, "_test.go") })
}

// trees are the files that parsed has parsed, each once for all tests.
var trees = map[string]tree{}

type tree struct {
	set  *token.FileSet
	file *ast.File
}

// parsed is a Go file of the repository, with its comments.
func parsed(t *testing.T, file string) (*token.FileSet, *ast.File) {
	t.Helper()
	if _, ok := trees[file]; !ok {
		set := token.NewFileSet()
		trees[file] = tree{set, testkit.Value(parser.ParseFile(set, file, read(t, file), parser.ParseComments|
			parser.SkipObjectResolution))(t)}
	}
	return trees[file].set, trees[file].file
}

// lines are those of a document outside of code blocks; a line inside one is empty.
func lines(t *testing.T, document string) []string {
	all, code := strings.Split(read(t, document), "\n"), false
	for i, line := range all {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if fence {
			code = !code
		}
		if fence || code {
			all[i] = ""
		}
	}
	return all
}

// sections are the names by which a document's headings are linked to, as GitHub makes them.
func sections(t *testing.T, document string) map[string]bool {
	found := map[string]bool{}
	if filepath.Ext(document) != ".md" {
		return found
	}
	for _, line := range lines(t, document) {
		for _, match := range anchor.FindAllStringSubmatch(line, -1) {
			found[match[1]] = true
		}
		match := heading.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, markup.ReplaceAllString(match[1], "$1"))
		found[name] = true
	}
	return found
}

// TestDiagrams: in a Mermaid diagram a semicolon ends a statement, so that GitHub shows an error in place of a picture
// whose labels have one.
func TestDiagrams(t *testing.T) {
	diagrams := 0
	for _, document := range tracked(t, "*.md") {
		inside := false
		for n, line := range strings.Split(read(t, document), "\n") {
			fence := strings.TrimSpace(line)
			switch {
			case fence == "```mermaid":
				inside = true
				diagrams++
			case strings.HasPrefix(fence, "```"):
				inside = false
			case inside && strings.Contains(line, ";"):
				t.Errorf("%s:%d: a semicolon in a diagram: %s", document, n+1, fence)
			}
		}
	}
	if diagrams < 4 {
		t.Errorf("%d diagrams were found", diagrams)
	}
}

// TestIndex: docs/README.md leads to each page, and docs/adr/README.md to each decision.
func TestIndex(t *testing.T) {
	for _, folder := range []string{"", "adr/"} {
		index := read(t, "docs/"+folder+"README.md")
		pages := testkit.Value(filepath.Glob(folder + "*.md"))(t)
		for _, page := range pages {
			if page = filepath.Base(page); page != "README.md" && !strings.Contains(index, "]("+page+")") {
				t.Errorf("docs/%sREADME.md has no link to %s", folder, page)
			}
		}
	}
}
