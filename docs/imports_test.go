package docs_test

import (
	_ "embed"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

const module = "github.com/kube-semaphore/semaphore/"

// parts are the folders of the product that run as programs of their own. They meet on the wire only.
var parts = []string{"agent", "broker", "ctl", "exporter"}

//go:embed imports.txt
var table string

// effects are what a pure package may not import: the kernel, the apiserver, the network, files and processes.
var effects = []string{
	"os", "os/exec", "net/http", "syscall", "golang.org/x/sys",
	"github.com/vishvananda/netlink", "github.com/google/nftables", "golang.zx2c4.com/wireguard/device",
	"k8s.io/client-go", "google.golang.org/grpc",
}

// harmless are parts of effects that have no effect themselves: the values and names of an interface.
var harmless = []string{
	"google.golang.org/grpc/codes", "google.golang.org/grpc/status",
	"golang.org/x/sys/unix", // constants of netlink in agent/plan
}

// importRule is a line of imports.txt.
type importRule struct {
	pure bool
	may  []string
}

// importRules reads imports.txt, in which each package of the product and of its tests has a line: its folder, "pure"
// if it decides and has no effects, and the packages that it may import of its own part or of internal/, each by its
// folder without that of the part; "*" is any.
func importRules(t *testing.T) map[string]importRule {
	t.Helper()
	all, before := map[string]importRule{}, ""
	for line := range strings.Lines(table) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		head, may, ok := strings.Cut(line, ":")
		fields := strings.Fields(head)
		if !ok || len(fields) == 0 || len(fields) > 2 || len(fields) == 2 && fields[1] != "pure" || fields[0] <= before {
			t.Fatalf("imports.txt, after %q: %q is not FOLDER [pure]: FOLDER..., in the order of folders", before,
				line)
		}
		before = fields[0]
		all[before] = importRule{len(fields) == 2, strings.Fields(may)}
	}
	return all
}

// TestImports holds the floors of the code: parts do not know each other, what they share knows none of them, the
// product does not know its tests, what decides has no effects, and a package imports what imports.txt lets it.
func TestImports(t *testing.T) {
	all, found := importRules(t), goList(t)
	for pkg := range all {
		if _, ok := found[pkg]; !ok {
			t.Errorf("imports.txt has %s, which does not exist", pkg)
		}
	}
	for pkg, is := range found {
		part, _, _ := strings.Cut(pkg, "/")
		r, listed := all[pkg]
		if !listed && (slices.Contains(parts, part) || part == "internal" || part == "test") && len(is.files) > 0 {
			t.Errorf("imports.txt has no line for %s: say there what it may import", pkg)
		}
		for _, imported := range is.imports {
			own, isOwn := strings.CutPrefix(imported, module)
			other, below, _ := strings.Cut(own, "/")
			switch {
			case isOwn && slices.Contains(parts, part) && slices.Contains(parts, other) && other != part:
				t.Errorf("%s imports %s: %s and %s are parts that meet on the wire only", pkg, own, part, other)
			case isOwn && part == "internal" && slices.Contains(parts, other):
				t.Errorf("%s imports %s: what the parts share knows none of them", pkg, own)
			case isOwn && part == "proto" && other != "proto":
				t.Errorf("%s imports %s: the messages depend on nothing", pkg, own)
			case isOwn && other == "test" && part != "test" && pkg != "cmd/testbed" && pkg != "deploy/image/build":
				t.Errorf("%s imports %s: the product does not know its tests", pkg, own)
			case r.pure && within(imported, effects) && !within(imported, harmless):
				t.Errorf("%s imports %s: it decides, and has no effects", pkg, imported)
			case isOwn && listed && other == part && !slices.Contains(r.may, below) && !slices.Contains(r.may, "*"):
				t.Errorf("%s imports %s, which its line in imports.txt does not name", pkg, own)
			}
		}
		if listed && slices.Contains(r.may, "*") {
			continue
		}
		for _, may := range r.may {
			if !slices.Contains(is.imports, module+part+"/"+may) {
				t.Errorf("imports.txt lets %s import %s, which it does not: take it out", pkg, may)
			}
		}
	}
}

// TestPackageComments: each package says what it is, and one that says that it is pure is so in imports.txt.
func TestPackageComments(t *testing.T) {
	isPure := regexp.MustCompile(`\b(It|The package) is pure\b`)
	all := importRules(t)
	for pkg, is := range goList(t) {
		if len(is.files) == 0 {
			continue
		}
		comment := strings.Join(strings.Fields(packageComment(t, is)), " ")
		part, _, _ := strings.Cut(pkg, "/")
		switch {
		case comment == "":
			t.Errorf("%s has no package comment", pkg)
		case isPure.MatchString(comment) && !all[pkg].pure && part != "test":
			t.Errorf("the comment of %s says that it is pure, and imports.txt does not", pkg)
		}
	}
}

// packageComment is what the files of a package say before its name.
func packageComment(t *testing.T, is goPackage) (text string) {
	t.Helper()
	for _, file := range is.files {
		parsed := testkit.Value(parser.ParseFile(token.NewFileSet(), filepath.Join(is.dir, file), nil,
			parser.PackageClauseOnly|parser.ParseComments))(t)
		text += parsed.Doc.Text()
	}
	return text
}

// goPackage is a package as go list knows it, tests left out.
type goPackage struct {
	dir            string
	files, imports []string
}

// listOnce asks go list, which takes seconds, once for all tests.
var listOnce = sync.OnceValues(func() (map[string]goPackage, error) {
	cmd := exec.Command("go", "list", "-f",
		`{{.ImportPath}}{{"\t"}}{{.Dir}}{{"\t"}}{{join .GoFiles " "}}{{"\t"}}{{join .Imports " "}}`, "./...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	found := map[string]goPackage{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		found[strings.TrimPrefix(fields[0], module)] = goPackage{fields[1], strings.Fields(fields[2]),
			strings.Fields(fields[3])}
	}
	if len(found) < 50 {
		return nil, fmt.Errorf("go list names few packages:\n%s", out)
	}
	return found, nil
})

func goList(t *testing.T) map[string]goPackage {
	t.Helper()
	return testkit.Value(listOnce())(t)
}

// within reports whether a package is one of those listed or below one.
func within(pkg string, of []string) bool {
	return slices.ContainsFunc(of, func(one string) bool { return pkg == one || strings.HasPrefix(pkg, one+"/") })
}

// TestGoInstall: go install PATH@VERSION, which docs/releases.md names, refuses a module whose go.mod replaces or
// excludes others.
func TestGoInstall(t *testing.T) {
	text := testkit.Value(os.ReadFile("../go.mod"))(t)
	if refused := regexp.MustCompile(`(?m)^(replace|exclude)\b.*`).Find(text); refused != nil {
		t.Errorf("go.mod has %q", refused)
	}
	if path := "module " + strings.TrimSuffix(module, "/") + "\n"; !strings.HasPrefix(string(text), path) {
		t.Errorf("go.mod does not begin with %q", path)
	}
}

// TestSemaphorectlIsSmall: what people download to a laptop has no more in it than it needs. Kubernetes' clientset
// brings every type of every API along, which was half of the program.
func TestSemaphorectlIsSmall(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "./cmd/semaphorectl")
	cmd.Dir, cmd.Env = "..", append(os.Environ(), "CGO_ENABLED=0") // as it ships
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	// Of these 11 are the streams of kubectl exec (WebSocket and SPDY), by which it reaches the parts, and 90 are
	// kustomize, by which install makes the objects from the manifests (4.7 of 31.5 MB), 3 the archives of bundle, and 2
	// the list of public domains, by which check says where a query goes that no block answers.
	// Own packages do not count: a wall between two rooms makes nothing larger.
	const most = 627
	deps := strings.Fields(string(out))
	foreign := len(slices.DeleteFunc(slices.Clone(deps), func(pkg string) bool { return strings.HasPrefix(pkg, module) }))
	if foreign > most {
		t.Errorf("semaphorectl is made of %d packages of others, %d at most: see what brought the new ones in (go mod why), "+
			"or raise this with a reason", foreign, most)
	}
	for _, pkg := range deps {
		own, isOwn := strings.CutPrefix(pkg, module)
		part, _, _ := strings.Cut(own, "/")
		switch {
		case within(pkg, []string{"k8s.io/client-go/kubernetes", "k8s.io/client-go/discovery"}):
			t.Errorf("semaphorectl needs %s: ask by k8s.io/client-go/dynamic or internal/kube.Served", pkg)
		case strings.HasPrefix(pkg, "k8s.io/api/") &&
			!within(pkg, []string{"k8s.io/api/core/v1", "k8s.io/api/networking/v1"}):
			t.Errorf("semaphorectl needs the types of %s", pkg)
		case isOwn && (slices.Contains(parts, part) && part != "ctl" || part == "test"):
			t.Errorf("semaphorectl needs %s, which is a part's own", own)
		}
	}
}
