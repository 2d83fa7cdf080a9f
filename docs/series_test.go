package docs_test

import (
	"go/ast"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// ended says how the series by cluster of a file end when the cluster is removed.
var ended = map[string]string{
	"agent/device/metrics.go":      "metrics.forget",
	"agent/device/rotator.go":      "Rotator.Forget",
	"agent/paths/monitor.go":       "Monitor.Forget",
	"broker/apply/metrics.go":      "TestForget (broker/apply)",
	"broker/federation/metrics.go": "TestForget (broker/federation)",
	"broker/report/propagation.go": "TestForget (broker/apply)",
	"exporter/publish/metrics.go":  "Metrics.forget",
}

// vectors finds the labels of a metric.
var vectors = regexp.MustCompile(
	`(?s)prometheus\.New(?:Counter|Gauge|Histogram|Summary)Vec\(.{0,600}?\[\]string\{(.*?)\}`)

var (
	vector  = regexp.MustCompile(`^\*prometheus\.\w+Vec$`)
	deletes = regexp.MustCompile(`\.(DeleteLabelValues|DeletePartialMatch)\(`)
)

// TestSeriesHaveAnEnd: each metric with a label cluster has code that deletes the series of a cluster that is removed.
func TestSeriesHaveAnEnd(t *testing.T) {
	found := map[string]bool{}
	for _, name := range product(t) {
		text := read(t, name)
		if !slices.ContainsFunc(vectors.FindAllStringSubmatch(text, -1), func(found []string) bool {
			return strings.Contains(found[1], `"cluster"`)
		}) {
			continue
		}
		found[name] = true
		for _, metric := range endless(t, name, text) {
			t.Errorf("%s: no function that deletes series names %s, which has series by cluster", name, metric)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if ended[name] == "" {
			t.Errorf("%s has series by cluster: delete those of a removed cluster, and name here what does", name)
		}
	}
	for name := range ended {
		if !found[name] {
			t.Errorf("%s has no series by cluster", name)
		}
	}
}

// endless returns the fields with a metric by cluster that no function of their file names that deletes series. A
// metric made by a function of the file counts as one by cluster.
func endless(t *testing.T, path, text string) (names []string) {
	_, file := parsed(t, path)
	of := func(n ast.Node) string { return text[n.Pos()-1 : n.End()-1] }
	deleting := map[string]bool{} // what functions that delete series name
	ast.Inspect(file, func(n ast.Node) bool {
		if f, ok := n.(*ast.FuncDecl); ok && deletes.MatchString(of(f)) {
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					deleting[s.Sel.Name] = true
				}
				return true
			})
		}
		return true
	})
	made := map[string]string{} // the code that makes a metric, by its field
	ast.Inspect(file, func(n ast.Node) bool {
		switch e := n.(type) {
		case *ast.KeyValueExpr:
			made[of(e.Key)] = of(e.Value)
		case *ast.AssignStmt:
			if s, ok := e.Lhs[0].(*ast.SelectorExpr); ok {
				made[s.Sel.Name] = of(e.Rhs[0])
			}
		}
		return true
	})
	ast.Inspect(file, func(n ast.Node) bool {
		field, ok := n.(*ast.Field)
		if !ok || !vector.MatchString(of(field.Type)) {
			return true
		}
		for _, name := range field.Names {
			labels := vectors.FindStringSubmatch(made[name.Name])
			if (labels == nil || strings.Contains(labels[1], `"cluster"`)) && !deleting[name.Name] {
				names = append(names, name.Name)
			}
		}
		return true
	})
	return names
}
