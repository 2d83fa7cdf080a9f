package docs_test

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// key is a label, an annotation or a taint of one of semaphore's domains.
var key = regexp.MustCompile(`(?:[A-Za-z]+\.)*semaphore\.uw\.(?:io|systems)/[a-z][A-Za-z0-9-]*`)

// composed are keys that the code makes of pieces, and those without a domain, which the tools before semaphore had.
var composed = []string{
	naming.PubKeyAnnotation("CLUSTER"), naming.EndpointAnnotation("CLUSTER"), naming.CandidatesAnnotation("CLUSTER"),
	naming.ReachableAtAnnotation("CLUSTER"), "PREFIX" + naming.PrefixedAgentNotReady,
	naming.DefaultLabelDomain + "/name", naming.DefaultLabelDomain + "/namespace",
	naming.DefaultLabelDomain + "/cluster", naming.PolicyLabelDomain + "/name",
	naming.LabelManagedBy, naming.LabelSetManagedBy, naming.LabelGlobal, naming.AnnotationGlobalClusters,
	naming.LabelMirrored, naming.LabelMirrorPrefixSync,
}

// TestKeysAreDocumented: docs/names.md has each key that the program and its manifests have, and no other.
func TestKeysAreDocumented(t *testing.T) {
	where := map[string]string{}
	for _, k := range composed {
		where[k] = "internal/naming"
	}
	for _, file := range tracked(t, "agent", "api", "broker", "cmd", "ctl", "deploy", "exporter", "internal") {
		for _, text := range texts(t, file) {
			for _, k := range key.FindAllString(text, -1) {
				if name, _, _ := strings.Cut(k, "/"); k != name+"/v1alpha1" && where[k] == "" {
					where[k] = file
				}
			}
		}
	}
	documented := map[string]bool{}
	rows := regexp.MustCompile("(?m)^\\| (`[^|]*)\\|.*\\|$")
	for _, row := range rows.FindAllStringSubmatch(read(t, "docs/names.md"), -1) {
		for _, name := range span.FindAllString(row[1], -1) {
			documented[strings.Trim(name, "`")] = true
		}
	}
	for k, file := range where {
		if !documented[k] {
			t.Errorf("docs/names.md lacks %s, which %s has", k, file)
		}
	}
	for k := range documented {
		if where[k] == "" && strings.Contains(k, "semaphore.uw") && strings.Contains(k, "/") {
			t.Errorf("docs/names.md has %s, which neither code nor manifests have", k)
		}
	}
	if len(where) < 40 {
		t.Errorf("%d keys were found", len(where))
	}
}

// texts are the literals of a file of the program, and the lines of a manifest that are no comments.
func texts(t *testing.T, file string) (all []string) {
	switch {
	case strings.HasSuffix(file, "_test.go") || strings.HasSuffix(file, ".pb.go"):
	case strings.HasSuffix(file, ".go"):
		_, parsed := parsed(t, file)
		ast.Inspect(parsed, func(n ast.Node) bool {
			if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				all = append(all, testkit.Value(strconv.Unquote(literal.Value))(t))
			}
			return true
		})
	case strings.HasSuffix(file, ".yaml"), strings.HasSuffix(file, ".tpl"):
		for line := range strings.Lines(read(t, file)) {
			if !strings.HasPrefix(strings.TrimSpace(line), "#") {
				all = append(all, line)
			}
		}
	}
	return all
}
