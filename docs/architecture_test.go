package docs_test

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const architecture = "docs/architecture.md"

// TestArchitecture: each file, package and function that docs/architecture.md and its pictures name exists. A function
// is looked up in the file that its row of a table, or its sentence, names last before it.
func TestArchitecture(t *testing.T) {
	if files, functions := namesExist(t, architecture); files < 40 || functions < 60 {
		t.Errorf("%d files and %d functions were found: the tables have another form than this test reads", files, functions)
	}
	pictures(t)
	pages, err := filepath.Glob("architecture/*.md")
	if err != nil || len(pages) < 4 {
		t.Fatalf("pages of the parts: %v, %v", pages, err)
	}
	for _, page := range pages {
		if files, _ := namesExist(t, filepath.Join("docs", page)); files < 3 {
			t.Errorf("%s names %d files", page, files)
		}
	}
}

// namesExist checks the files, packages and functions that a page names, and counts the files and functions.
func namesExist(t *testing.T, page string) (named, functions int) {
	t.Helper()
	code := regexp.MustCompile("`([^`]+)`")
	path := regexp.MustCompile(`^[a-z0-9]+(/[A-Za-z0-9_.-]+)*$`)
	function := regexp.MustCompile(`^(?:[A-Za-z]+\.)?[A-Za-z]+$`)
	files := map[string]bool{}
	for n, line := range lines(t, page) {
		file := ""
		var pending []string // functions of a sentence that names its file after them
		check := func(name string) {
			functions++
			if !slices.Contains(declared(t, file), name) {
				t.Errorf("%s:%d: %s has no %s", page, n+1, file, name)
			}
		}
		for _, match := range code.FindAllStringSubmatch(line, -1) {
			name := match[1]
			switch isRow := strings.HasPrefix(line, "|"); {
			case strings.HasSuffix(name, ".go"):
				if _, err := os.Stat(filepath.Join("..", name)); err != nil {
					t.Errorf("%s:%d: there is no %s", page, n+1, name)
					continue
				}
				file, files[name] = name, true
				for _, waiting := range pending {
					check(waiting)
				}
				pending = nil
			case strings.Contains(name, "/") && path.MatchString(name):
				if !isPackage(name) {
					t.Errorf("%s:%d: there is no package %s", page, n+1, name)
				}
			case !function.MatchString(name) || !isRow && !strings.Contains(name, "."):
				// A key, a command or a message.
			case file != "":
				check(name)
			case strings.Contains(name, ".") && strings.ToLower(name) != name:
				pending = append(pending, name)
			}
		}
		for _, name := range pending {
			t.Errorf("%s:%d: no file is named with %s", page, n+1, name)
		}
	}
	return len(files), functions
}

// pictures checks the packages that the pictures of the page name, in monospaced text.
func pictures(t *testing.T) {
	t.Helper()
	image := regexp.MustCompile(`\]\((images/[^)]+\.svg)\)`)
	text := regexp.MustCompile(`<text[^>]*monospace[^>]*>([^<]+)</text>`)
	found, packages := 0, 0
	for _, match := range image.FindAllStringSubmatch(read(t, architecture), -1) {
		found++
		for _, label := range text.FindAllStringSubmatch(read(t, filepath.Join("docs", match[1])), -1) {
			packages++
			if !isPackage(label[1]) {
				t.Errorf("docs/%s: there is no package %s", match[1], label[1])
			}
		}
	}
	if found != 3 || packages < 20 {
		t.Errorf("%d pictures with %d packages were found", found, packages)
	}
}

func isPackage(name string) bool {
	sources, err := filepath.Glob(filepath.Join("..", name, "*"))
	return err == nil && len(sources) > 0
}

// declared are the functions of a file, and its methods as Type.Method.
func declared(t *testing.T, file string) (names []string) {
	t.Helper()
	_, parsed := parsed(t, file)
	for _, d := range parsed.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		name := f.Name.Name
		if f.Recv != nil {
			name = receiver(f.Recv.List[0].Type) + "." + name
		}
		names = append(names, name)
	}
	return names
}

// receiver is the name of a method's type, without its pointer and type parameters.
func receiver(of ast.Expr) string {
	switch of := of.(type) {
	case *ast.StarExpr:
		return receiver(of.X)
	case *ast.IndexExpr:
		return receiver(of.X)
	case *ast.IndexListExpr:
		return receiver(of.X)
	case *ast.Ident:
		return of.Name
	}
	return ""
}
