package semaphorev1_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

const root = "../../.."

func document(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "docs/protocol.md"))
	testkit.Must(t, err)
	return string(data)
}

// The numbers in docs/protocol.md are those of the code.
func TestNumbersOfTheDocument(t *testing.T) {
	row := regexp.MustCompile("(?m)^\\|[^|]*\\| *([^|]+?) *\\| `([a-z/]+)\\.([A-Za-z]+)` \\|$")
	rows := row.FindAllStringSubmatch(document(t), -1)
	if len(rows) < 25 {
		t.Fatalf("%d numbers found; the table has another form than this test reads", len(rows))
	}
	for _, r := range rows {
		written, dir, name := r[1], r[2], r[3]
		want, err := number(written)
		if err != nil {
			t.Errorf("%s.%s: %v", dir, name, err)
			continue
		}
		got, err := constant(filepath.Join(root, dir), name)
		if err != nil {
			t.Errorf("%s.%s: %v", dir, name, err)
		} else if got != want {
			t.Errorf("%s.%s is %d in the code, and %q, which is %d, in the document", dir, name, got, written, want)
		}
	}
}

// The document names every service and every message that begins, carries or ends a stream.
func TestMessagesOfTheDocument(t *testing.T) {
	text := document(t)
	for _, file := range []protoreflect.FileDescriptor{semaphorev1.File_semaphore_v1_federation_proto,
		semaphorev1.File_semaphore_v1_peering_proto} {
		for i := range file.Services().Len() {
			if name := string(file.Services().Get(i).Name()); !strings.Contains(text, name) {
				t.Errorf("nothing of %s", name)
			}
		}
		for i := range file.Messages().Len() {
			m := file.Messages().Get(i)
			for j := range m.Oneofs().Len() {
				oneof := m.Oneofs().Get(j)
				if oneof.Name() != "message" {
					continue
				}
				for k := range oneof.Fields().Len() {
					if name := string(oneof.Fields().Get(k).Message().Name()); !regexp.MustCompile(`\b` + name +
						`\b`).MatchString(text) {
						t.Errorf("nothing of %s", name)
					}
				}
			}
		}
	}
}

// number reads what the document has: a number with a unit, or a duration, in nanoseconds.
func number(text string) (int64, error) {
	if d, err := time.ParseDuration(text); err == nil {
		return int64(d), nil
	}
	first, unit, _ := strings.Cut(text, " ")
	n, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is neither a number nor a duration", text)
	}
	switch unit {
	case "KiB":
		n <<= 10
	case "MiB":
		n <<= 20
	}
	return n, nil
}

// constant is the value of a package's integer or duration constant, read from its source.
func constant(dir, name string) (int64, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return 0, err
	}
	known := map[string]ast.Expr{}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return 0, err
		}
		for _, decl := range file.Decls {
			general, ok := decl.(*ast.GenDecl)
			if !ok || general.Tok != token.CONST {
				continue
			}
			for _, spec := range general.Specs {
				values := spec.(*ast.ValueSpec)
				for i, id := range values.Names {
					if i < len(values.Values) {
						known[id.Name] = values.Values[i]
					}
				}
			}
		}
	}
	if known[name] == nil {
		return 0, fmt.Errorf("there is no such constant in %s", strings.TrimPrefix(dir, root+"/"))
	}
	return value(known[name], known)
}

var durations = map[string]time.Duration{
	"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour,
}

// value is that of a constant expression.
func value(e ast.Expr, known map[string]ast.Expr) (int64, error) {
	switch e := e.(type) {
	case *ast.BasicLit:
		return strconv.ParseInt(e.Value, 0, 64)
	case *ast.Ident:
		if of, ok := known[e.Name]; ok {
			return value(of, known)
		}
	case *ast.ParenExpr:
		return value(e.X, known)
	case *ast.SelectorExpr:
		if d, ok := durations[e.Sel.Name]; ok {
			return int64(d), nil
		}
	case *ast.BinaryExpr:
		x, err := value(e.X, known)
		if err != nil {
			return 0, err
		}
		y, err := value(e.Y, known)
		if err != nil {
			return 0, err
		}
		switch e.Op {
		case token.MUL:
			return x * y, nil
		case token.SHL:
			return x << y, nil
		case token.ADD:
			return x + y, nil
		}
	}
	return 0, fmt.Errorf("an expression that this test cannot read: %T", e)
}
