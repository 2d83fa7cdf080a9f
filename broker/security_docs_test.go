package broker

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/finding"
)

// docs/security.md claims nothing without a test that exists where it says, and has every word of a refusal.
func TestSecurityDocumentNamesTestsThatExist(t *testing.T) {
	data, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	exist := map[string]map[string]bool{}
	tests := func(dir string) map[string]bool {
		if known, ok := exist[dir]; ok {
			return known
		}
		exist[dir] = map[string]bool{}
		files, err := filepath.Glob(filepath.Join("..", dir, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Errorf("%s has no tests: %v", dir, err)
		}
		for _, file := range files {
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Errorf("%s: %v", file, err)
				continue
			}
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
					exist[dir][fn.Name.Name] = true
				}
			}
		}
		return exist[dir]
	}
	// "`TestA`, `TestB` (dir)": names, and then the directory of all of them.
	group := regexp.MustCompile("((?:`(?:Test|Fuzz)\\w+`(?:, )?)+) \\(([\\w/]+)\\)")
	name := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
	named := 0
	for _, g := range group.FindAllStringSubmatch(text, -1) {
		for _, n := range name.FindAllStringSubmatch(g[1], -1) {
			named++
			if !tests(g[2])[n[1]] {
				t.Errorf("%s is not in %s", n[1], g[2])
			}
		}
	}
	if all := len(name.FindAllString(text, -1)); all != named {
		t.Errorf("%d names of tests, and %d of them with a directory", all, named)
	}
	for rule := 1; rule <= 28; rule++ {
		if !regexp.MustCompile(`(?m)^\| R` + strconv.Itoa(rule) + ` \| [^|]+ \| [^|]+ \| [^|]+ \|$`).MatchString(text) {
			t.Errorf("no row for R%d that names a test and a cost", rule)
		}
	}

	codes := finding.Of(finding.Refusals)
	for _, code := range codes {
		if strings.Count(text, "\n| `"+string(code)+"` | ") != 1 {
			t.Errorf("the code %s has no row of its own", code)
		}
	}
	if rows := strings.Count(text[strings.Index(text, "\n| Code |"):strings.Index(text,
		"\nOf an object that is refused in part")], "\n| `"); rows != len(codes) {
		t.Errorf("%d codes, %d rows", len(codes), rows)
	}
}
