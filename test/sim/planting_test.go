package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// mistake is a mistake that a person could make in the product, and the invariant that it breaks.
type mistake struct {
	name      string
	invariant string
	edits     []edit
}

// edit is a change to the text of one or more functions of a file.
type edit struct{ file, old, new string }

// plantedMistake is the variable of the environment that names the mistake which a program of buildPlanted makes.
const plantedMistake = "PLANTED_MISTAKE"

// plantAll plants all mistakes into copies of the product's files, and returns the file that puts these in place of the
// originals (go help build, -overlay). One program for each mistake takes ten times as long to build.
func plantAll(t *testing.T, root string, mistakes []mistake) (overlayFile string) {
	dir := t.TempDir()
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	add := func(file, text string) {
		replacement := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		testkit.Must(t, os.WriteFile(replacement, []byte(text), 0o600))
		overlay.Replace[filepath.Join(root, filepath.FromSlash(file))] = replacement
	}
	files := map[string]bool{}
	for _, m := range mistakes {
		for _, e := range m.edits {
			files[e.file] = true
		}
	}
	for file := range files {
		text := testkit.Value(os.ReadFile(filepath.Join(root, filepath.FromSlash(file))))(t)
		planted, pkg, err := plant(string(text), file, mistakes)
		if err != nil {
			t.Fatalf("%s: %v: the mistake has to be planted in another way", file, err)
		}
		add(file, planted)
		add(path.Join(path.Dir(file), "planted_mistake.go"), fmt.Sprintf(
			"package %s\n\nimport \"os\"\n\nvar plantedMistake = os.Getenv(%q)\n", pkg, plantedMistake))
	}
	data := testkit.Value(json.Marshal(overlay))(t)
	overlayFile = filepath.Join(dir, "overlay.json")
	testkit.Must(t, os.WriteFile(overlayFile, data, 0o600))
	return overlayFile
}

// buildPlanted builds the tests of this package with all mistakes; the program makes the one that plantedMistake names.
func buildPlanted(t *testing.T, root, overlayFile string) (program string) {
	program = filepath.Join(t.TempDir(), "sim.test")
	// It needs no clock, and tests beside it do.
	cmd := exec.CommandContext(t.Context(), "nice", "-n", "5", "go", "test", "-vet=off", "-overlay", overlayFile,
		"-ldflags=-s -w", "-c", "-o", program, "./test/sim")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOGC=400") // as the Makefile's COMPILERS
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// plant returns the text of a file with a copy of each function that a mistake changes. The function itself calls the
// copy where plantedMistake names the mistake, and else does what it did.
func plant(text, file string, mistakes []mistake) (planted, pkg string, err error) {
	tree, functions, rest, err := functionsOf(text)
	if err != nil {
		return "", "", err
	}
	calls, copies := map[string]string{}, ""
	for i, m := range mistakes {
		edited, err := m.edit(text, file)
		if err != nil {
			return "", "", fmt.Errorf("%s: %w", m.name, err)
		}
		_, after, restAfter, err := functionsOf(edited)
		if err != nil {
			return "", "", fmt.Errorf("%s: %w", m.name, err)
		}
		if restAfter != rest || len(after) != len(functions) {
			return "", "", fmt.Errorf("%s changes more than what functions do", m.name)
		}
		for _, key := range slices.Sorted(maps.Keys(functions)) {
			f, changed := functions[key], after[key]
			if changed.text == f.text {
				continue
			}
			if changed.head != f.head {
				return "", "", fmt.Errorf("%s changes the head of %s", m.name, key)
			}
			name := fmt.Sprintf("%sPlanted%d", f.decl.Name.Name, i)
			call, err := f.call(name)
			if err != nil {
				return "", "", fmt.Errorf("%s: %s: %w", m.name, key, err)
			}
			calls[key] += fmt.Sprintf(" if plantedMistake == %q { %s };", m.name, call)
			copies += "\n" + changed.named(name) + "\n"
		}
	}
	inserted := 0
	for _, d := range tree.Decls { // in the order of the text
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
			at := int(f.Body.Lbrace) + inserted // positions begin with 1: it is behind the brace
			text = text[:at] + calls[keyOf(f)] + text[at:]
			inserted += len(calls[keyOf(f)])
		}
	}
	return text + copies, tree.Name.Name, nil
}

// edit returns the text of a file with the edits of the mistake.
func (m mistake) edit(text, file string) (string, error) {
	for _, e := range m.edits {
		if e.file != file {
			continue
		}
		if n := strings.Count(text, e.old); n != 1 {
			return "", fmt.Errorf("there is %d times what is to be replaced, %q", n, e.old)
		}
		text = strings.Replace(text, e.old, e.new, 1)
	}
	return text, nil
}

// function is one of a file; head is its text before the body.
type function struct {
	decl       *ast.FuncDecl
	text, head string
}

// functionsOf returns the functions of a file by their receivers and names, and the text outside of them.
func functionsOf(text string) (tree *ast.File, functions map[string]function, rest string, err error) {
	// The file is the first of its set, so positions are places in the text, from 1 on.
	tree, err = parser.ParseFile(token.NewFileSet(), "", text, parser.SkipObjectResolution)
	if err != nil {
		return nil, nil, "", err
	}
	functions = map[string]function{}
	end := 0
	for _, d := range tree.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
			begin := int(f.Pos()) - 1
			rest += text[end:begin]
			end = int(f.End()) - 1
			functions[keyOf(f)] = function{f, text[begin:end], text[begin : f.Body.Lbrace-1]}
		}
	}
	return tree, functions, rest + text[end:], nil
}

// keyOf is the receiver's type and the name of a function.
func keyOf(f *ast.FuncDecl) string {
	key := f.Name.Name
	if f.Recv != nil {
		ast.Inspect(f.Recv.List[0].Type, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				key = id.Name + "." + key
			}
			return true
		})
	}
	return key
}

// named is the text of the function with another name.
func (f function) named(name string) string {
	begin := int(f.decl.Name.Pos() - f.decl.Pos())
	return f.text[:begin] + name + f.text[begin+len(f.decl.Name.Name):]
}

// call is the statement by which the function does what that of another name does.
func (f function) call(name string) (string, error) {
	if f.decl.Recv != nil {
		if len(f.decl.Recv.List[0].Names) == 0 {
			return "", errors.New("its receiver has no name")
		}
		name = f.decl.Recv.List[0].Names[0].Name + "." + name
	}
	var args []string
	for _, p := range f.decl.Type.Params.List {
		if len(p.Names) == 0 {
			return "", errors.New("a parameter has no name")
		}
		for _, n := range p.Names {
			arg := n.Name
			if _, ok := p.Type.(*ast.Ellipsis); ok {
				arg += "..."
			}
			args = append(args, arg)
		}
	}
	call := name + "(" + strings.Join(args, ", ") + ")"
	if f.decl.Type.Results != nil {
		return "return " + call, nil
	}
	return call + "; return", nil
}
