package docs_test

import (
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
)

const module = "github.com/kube-semaphore/semaphore/"

// parts are the folders of the product that run in different pods. They meet on the wire only.
var parts = []string{"agent", "broker", "exporter"}

// pure packages decide: they have no effect, so that tables test them and the simulation runs them.
var pure = []string{
	"agent/desired", "agent/mtu", "agent/plan", "agent/problem", "agent/rotation", "agent/schedule", "agent/talk",
	"broker/admission", "broker/apply/writes", "broker/claim", "broker/drain", "broker/endpoints", "broker/holders",
	"broker/kinds", "broker/mesh", "broker/mirror",
	"broker/policy", "broker/prefer",
	"broker/problem", "broker/replica", "broker/retain",
	"exporter/catalog",
	"internal/diagnose/explain", "internal/diagnose/mesh", "internal/diagnose/path", "internal/diagnose/picture",
	"internal/diagnose/selector", "internal/diagnose/verdict",
	"internal/finding", "internal/naming", "internal/podcidr", "internal/remotes",
	"internal/remotes/migrate",
	"internal/stream/digest", "internal/stream/journal",
}

// testOnly are packages that tests share. No product imports them.
var testOnly = []string{"internal/testkit", "internal/bench", "internal/mutation"}

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

// owners each own a part of the agent's or the broker's state, and may not import these: what crosses between them is
// values that package agent or broker, or an owner further out, passes on (docs/adr/0020-agent-parts.md,
// docs/adr/0025-broker-parts.md).
var owners = map[string][]string{
	"agent/events": {"agent"},
	"agent/session": {"agent/device", "agent/hostnet", "agent/keys", "agent/peers", "agent/schedule", "agent/status",
		"agent/wireguard"},
	"agent/keys":     {"agent/device", "agent/hostnet", "agent/peers", "agent/schedule", "agent/session", "agent/status"},
	"agent/peers":    {"agent/device", "agent/hostnet", "agent/keys", "agent/schedule", "agent/session", "agent/status"},
	"agent/schedule": {"agent/device", "agent/hostnet", "agent/keys", "agent/peers", "agent/session", "agent/status"},
	"agent/status":   {"agent/device", "agent/hostnet", "agent/keys", "agent/peers", "agent/schedule"},
	"agent/hostnet":  {"agent/device", "agent/keys", "agent/peers"},
	"agent/device":   {"agent"},

	// Engines decide what is desired, and do not know who writes it or receives it.
	"exporter/conditions": {"exporter", "exporter/feedback", "exporter/publish", "exporter/watch"},
	"broker/services": {"broker/apply", "broker/federation", "broker/informers", "broker/networksets", "broker/peering",
		"broker/tunnels"},
	"broker/networksets": {"broker/apply", "broker/federation", "broker/informers", "broker/peering", "broker/services",
		"broker/tunnels"},
	"broker/tunnels": {"broker/apply", "broker/federation", "broker/informers", "broker/networksets", "broker/peering",
		"broker/services"},

	"broker/events": {"broker", "broker/apply", "broker/informers", "broker/networksets", "broker/services",
		"broker/tunnels"},
	"broker/informers": {"broker", "broker/apply", "broker/networksets", "broker/services", "broker/tunnels"},
	"broker/migrate": {"broker", "broker/apply", "broker/informers", "broker/networksets", "broker/services",
		"broker/tunnels"},
	"broker/apply": {"broker", "broker/drains", "broker/networksets", "broker/nodes", "broker/services",
		"broker/tunnels"},
	"broker/nodes": {"broker", "broker/drains", "broker/networksets", "broker/peering", "broker/services",
		"broker/tunnels"},
	"broker/drains":    {"broker", "broker/networksets", "broker/nodes", "broker/services", "broker/tunnels"},
	"broker/dns":       {"broker", "broker/apply", "broker/services"},
	"broker/operator":  {"broker"},
	"broker/uninstall": {"broker", "broker/networksets", "broker/services", "broker/tunnels"},
}

// shared are the packages of internal/, each with those of internal/ that it may import; * is any. The messages may be
// imported by those that have "proto". Who adds an import adds it here, and to the package's comment
// (docs/adr/0024-internal.md).
var shared = map[string]string{
	// Leaves: they import no other package of semaphore.
	"internal/conns": "", "internal/durable": "", "internal/finding": "", "internal/naming": "", "internal/unixsocket": "",
	"internal/volume":        "",
	"internal/stream/digest": "", "internal/stream/journal": "", "internal/stream/link": "", "internal/stream/wire": "",
	"internal/kube/reconcile":    "",
	"internal/diagnose/selector": "",
	"internal/diagnose/explain":  "diagnose/selector naming",
	"internal/diagnose/path":     "diagnose/explain finding",
	"internal/ctl/cli":           "",
	// Files, identities and what is read of them.
	"internal/config":   "naming volume",
	"internal/coredns":  "config naming",
	"internal/identity": "config volume",
	"internal/pki":      "config durable identity",
	// Processes and the apiserver.
	"internal/program":     "conns finding",
	"internal/debug":       "conns finding program unixsocket proto",
	"internal/tracing":     "config debug finding program",
	"internal/kube":        "config program",
	"internal/kube/leader": "config finding kube proto",
	"internal/podcidr":     "config kube",
	// The Multi-Cluster Services API.
	"internal/mcs": "kube", "internal/mcs/definitions": "",
	// RemoteClusters.
	"internal/remotes":         "config finding api/v1alpha1",
	"internal/remotes/migrate": "config finding api/v1alpha1",
	"internal/remotes/follow":  "config kube naming remotes api/v1alpha1",
	// semaphorectl.
	"internal/diagnose/check":     "coredns finding identity volume",
	"internal/diagnose/preflight": "diagnose/check finding",
	"internal/ctl/probe":          "ctl/verify",
	"internal/ctl/verify":         "ctl/cli finding proto",
	"internal/diagnose/verdict":   "finding proto",
	"internal/diagnose/mesh":      "diagnose/verdict finding proto",
	"internal/diagnose/picture":   "diagnose/mesh finding proto",
	"internal/ctl/fleet":          "config ctl/cli identity program unixsocket proto",
	"internal/ctl/install":        "config diagnose/check diagnose/preflight finding naming deploy",
	"internal/ctl":                "*",
	// Tests.
	"internal/bench": "*", "internal/bench/figure": "", "internal/bench/table": "bench/figure",
	"internal/mutation":     "",
	"internal/testkit/otlp": "testkit",
	"internal/testkit":      "", "internal/testkit/browser": "testkit", "internal/testkit/loopback": "",
	"internal/testkit/metricsdoc": "", "internal/testkit/mcstest": "mcs/definitions",
	"internal/testkit/kubetest": "testkit testkit/loopback api/v1alpha1 deploy/crds",
	"internal/testkit/trust":    "config identity pki testkit",
}

// TestShared holds what packages of internal/ import of each other, and that each says so in its comment.
func TestShared(t *testing.T) {
	for pkg, imports := range packages(t) {
		if !strings.HasPrefix(pkg, "internal/") {
			continue
		}
		allowed, listed := shared[pkg]
		if !listed {
			t.Errorf("%s is not in the list of packages that parts share: say there what it may import", pkg)
		}
		for _, imported := range imports {
			own, isOwn := strings.CutPrefix(imported, module)
			own, _ = strings.CutPrefix(own, "internal/")
			if strings.HasPrefix(own, "proto/") {
				own = "proto"
			}
			if isOwn && allowed != "*" && !strings.HasPrefix(own, "testbed/") && !slices.Contains(strings.Fields(allowed), own) {
				t.Errorf("%s imports %s, which is not in its list: %q", pkg, own, allowed)
			}
		}
	}
	for pkg, is := range goList(t) {
		if !strings.HasPrefix(pkg, "internal/") && !strings.HasPrefix(pkg, "proto/") || len(is.files) == 0 {
			continue
		}
		if comment := packageComment(t, is); !strings.Contains(comment, "import") {
			t.Errorf("the comment of %s does not say what it may import", pkg)
		}
	}
}

// packageComment is what the files of a package say before its name.
func packageComment(t *testing.T, is goPackage) (text string) {
	t.Helper()
	for _, file := range is.files {
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(is.dir, file), nil,
			parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		text += parsed.Doc.Text()
	}
	return text
}

// TestOwners holds the borders between the owners of the agent's state, and of the broker's.
func TestOwners(t *testing.T) {
	found := packages(t)
	for owner, forbidden := range owners {
		imports, ok := found[owner]
		if !ok {
			t.Errorf("%s is in the list of owners and does not exist", owner)
		}
		for _, imported := range imports {
			if own, isOwn := strings.CutPrefix(imported, module); isOwn && slices.Contains(forbidden, own) {
				t.Errorf("%s imports %s: both own state, and pass values through another", owner, own)
			}
		}
	}
}

// TestImports holds the floors of the code: parts do not know each other, what they share knows none of them, the
// product does not know its tests, and what decides has no effects.
func TestImports(t *testing.T) {
	for pkg, imports := range packages(t) {
		part, _, _ := strings.Cut(pkg, "/")
		product := (slices.Contains(parts, part) || part == "internal" || strings.HasPrefix(pkg, "cmd/semaphore")) &&
			!strings.HasSuffix(pkg, "test") && !within(pkg, testOnly)
		for _, imported := range imports {
			own, isOwn := strings.CutPrefix(imported, module)
			other, _, _ := strings.Cut(own, "/")
			switch {
			case isOwn && slices.Contains(parts, part) && slices.Contains(parts, other) && other != part:
				t.Errorf("%s imports %s: %s and %s are parts that meet on the wire only", pkg, own, part, other)
			case isOwn && part == "internal" && slices.Contains(parts, other):
				t.Errorf("%s imports %s: what the parts share knows none of them", pkg, own)
			case isOwn && part == "proto" && other != "proto":
				t.Errorf("%s imports %s: the messages depend on nothing", pkg, own)
			case isOwn && product && (slices.Contains([]string{"testbed", "e2e", "sim", "redteam"}, other) ||
				within(own, testOnly)):
				t.Errorf("%s imports %s: the product does not know its tests", pkg, own)
			case slices.Contains(pure, pkg) && within(imported, effects) && !within(imported, harmless):
				t.Errorf("%s imports %s: it decides, and has no effects", pkg, imported)
			}
		}
	}
}

// TestPackageComments: each package says what it is. A package of a part says which others of its part it may import,
// and imports no more; one that says that it is pure is in the list of pure packages, and the other way round.
func TestPackageComments(t *testing.T) {
	limited := regexp.MustCompile(`Of the (\w+)'s packages it may import ([^.]+)\.`)
	isPure := regexp.MustCompile(`\b(It|The package) is pure\b`)
	imports, said := packages(t), 0
	for pkg, is := range goList(t) {
		if len(is.files) == 0 {
			continue
		}
		comment := strings.Join(strings.Fields(packageComment(t, is)), " ")
		part, _, below := strings.Cut(pkg, "/")
		switch {
		case comment == "":
			t.Errorf("%s has no package comment", pkg)
		case isPure.MatchString(comment) != slices.Contains(pure, pkg) && !within(pkg, testOnly):
			t.Errorf("%s: its comment says that it is pure, or the list of pure packages does, and the other does not", pkg)
		}
		if !slices.Contains(parts, part) {
			continue
		}
		var allowed []string
		match := limited.FindStringSubmatch(comment)
		switch {
		case match != nil && match[1] == part:
			allowed = strings.FieldsFunc(strings.ReplaceAll(match[2], " and ", ", "),
				func(r rune) bool { return r == ',' || r == ' ' })
		case strings.Contains(comment, "It may import no other package of the "+part+"."):
		case !below && strings.Contains(comment, "It may import every package of the "+part+"."):
			said++
			continue
		default:
			t.Errorf("the comment of %s does not say which packages of the %s it may import", pkg, part)
			continue
		}
		said++
		for _, imported := range imports[pkg] {
			if own, isOwn := strings.CutPrefix(imported, module+part+"/"); isOwn && !slices.Contains(allowed, own) {
				t.Errorf("%s imports %s, which its comment does not name", pkg, part+"/"+own)
			}
		}
	}
	if said < 50 {
		t.Errorf("%d packages say what they may import: their comments have another form than this test reads", said)
	}
}

// packages are those of the product and its tools with what each imports, tests left out.
func packages(t *testing.T) map[string][]string {
	found := map[string][]string{}
	for pkg, is := range goList(t) {
		found[pkg] = is.imports
	}
	for _, pkg := range pure {
		if _, ok := found[pkg]; !ok {
			t.Errorf("%s is in the list of pure packages and does not exist", pkg)
		}
	}
	return found
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
	found, err := listOnce()
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// within reports whether a package is one of those listed or below one.
func within(pkg string, of []string) bool {
	return slices.ContainsFunc(of, func(one string) bool { return pkg == one || strings.HasPrefix(pkg, one+"/") })
}

// TestGoInstall: go install PATH@VERSION, which docs/releases.md names, refuses a module whose go.mod replaces or
// excludes others.
func TestGoInstall(t *testing.T) {
	text, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
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
	// kustomize, by which install makes the objects from the manifests (4.7 of 31.5 MB)
	// and 3 the archives of bundle.
	const most = 660
	deps := strings.Fields(string(out))
	if len(deps) > most {
		t.Errorf("semaphorectl is made of %d packages, %d at most: see what brought the new ones in (go mod why), or raise "+
			"this with a reason", len(deps), most)
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
		case isOwn && slices.Contains(append(parts, "testbed"), part) && pkg != module+part:
			t.Errorf("semaphorectl needs %s, which is a part's own", own)
		}
	}
}
