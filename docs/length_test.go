package docs_test

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

// maxFunction is how many lines a function has at most, so that it fits a screen. A table, that is a composite literal
// of values without a function in it, counts as one line.
const maxFunction = 70

// TestFunctionsFitAScreen holds the functions of the product and of its tools. Tests are lists of steps, and may be
// longer.
func TestFunctionsFitAScreen(t *testing.T) {
	seen := 0
	for _, file := range tracked(t, "*.go") {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		fset, parsed := parsed(t, file)
		if ast.IsGenerated(parsed) {
			continue
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				seen++
				if n := linesOf(fset, f); n > maxFunction {
					t.Errorf("%s: %s has %d lines, %d at most: move a decision or a step with a name of its own out of it",
						fset.Position(f.Pos()), f.Name.Name, n, maxFunction)
				}
			}
		}
	}
	if seen < 3000 {
		t.Errorf("%d functions read: git names few files", seen)
	}
}

// maxPage is how many lines a page has at most, and maxPages those of all documents of the repository.
const maxPage, maxPages = 250, 8000

// TestPagesAreShort: a page is read in one go. The reference of semaphorectl is made from the program.
func TestPagesAreShort(t *testing.T) {
	all := 0
	for _, page := range tracked(t, "*.md") {
		n := strings.Count(read(t, page), "\n")
		if all += n; n > maxPage && page != "docs/cli.md" {
			t.Errorf("%s has %d lines, %d at most: move what is looked up to a page of its own", page, n, maxPage)
		}
	}
	if all < 5000 || all > maxPages {
		t.Errorf("the documents have %d lines, %d at most", all, maxPages)
	}
}

// linesOf counts the lines of a function, a table as one.
func linesOf(fset *token.FileSet, f *ast.FuncDecl) int {
	lines := func(n ast.Node) int { return fset.Position(n.End()).Line - fset.Position(n.Pos()).Line + 1 }
	total := lines(f)
	ast.Inspect(f, func(n ast.Node) bool {
		table, ok := n.(*ast.CompositeLit)
		if !ok || hasFunction(table) {
			return true
		}
		total -= lines(table) - 1
		return false
	})
	return total
}

func hasFunction(in ast.Node) (found bool) {
	ast.Inspect(in, func(n ast.Node) bool {
		_, is := n.(*ast.FuncLit)
		found = found || is
		return !found
	})
	return found
}
