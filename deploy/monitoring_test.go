package deploy_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/ctl/apply"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// dashboard has the checked fields of Grafana's JSON model
// (https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/).
type dashboard struct {
	UID           string
	Title         string
	SchemaVersion int
	Templating    struct {
		List []struct{ Name string }
	}
	Panels []struct {
		ID      int
		Type    string
		Title   string
		GridPos struct{ H, W, X, Y int }
		Targets []struct{ RefID, Expr string }
	}
}

type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func rules(t *testing.T) []rule {
	t.Helper()
	data := testkit.Value(os.ReadFile("features/alerts/rules.yaml"))(t)
	var object struct {
		Spec struct {
			Groups []struct{ Rules []rule }
		}
	}
	must(t, yaml.UnmarshalStrict(data, &struct{ APIVersion, Kind, Metadata, Spec any }{}))
	must(t, yaml.Unmarshal(data, &object))
	return object.Spec.Groups[0].Rules
}

var metricName = regexp.MustCompile(`\bsemaphore_[a-z_]+`)

// documented returns the metrics in docs/metrics.md.
func documented(t *testing.T) map[string]bool {
	t.Helper()
	text := testkit.Value(os.ReadFile("../docs/metrics.md"))(t)
	names := map[string]bool{"semaphore_build_info": true}
	for _, found := range regexp.MustCompile("(?m)^\\| `(semaphore_[a-z_]+)` \\|").FindAllStringSubmatch(string(text),
		-1) {
		names[found[1]] = true
	}
	if len(names) < 70 {
		t.Fatalf("docs/metrics.md has only %d metrics", len(names))
	}
	return names
}

// unknown returns the metrics in an expression that docs/metrics.md lacks.
func unknown(expr string, known map[string]bool) (names []string) {
	for _, name := range metricName.FindAllString(expr, -1) {
		if !known[name] && !known[strings.TrimSuffix(name, "_bucket")] {
			names = append(names, name)
		}
	}
	return names
}

// TestMonitoring checks that the dashboard and the alerts use existing metrics, and that docs/alerts.md has the alerts.
func TestMonitoring(t *testing.T) {
	known := documented(t)
	data := testkit.Value(os.ReadFile("features/dashboard/semaphore.json"))(t)
	var d dashboard
	must(t, json.Unmarshal(data, &d))
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 36 || len(d.Templating.List) != 4 {
		t.Errorf("the dashboard lacks what Grafana needs: %q %q %d %v", d.UID, d.Title, d.SchemaVersion, d.Templating)
	}
	ids := map[int]bool{}
	for i, p := range d.Panels {
		if ids[p.ID] || p.GridPos.W == 0 || p.GridPos.X+p.GridPos.W > 24 || p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %d %q: id %d, place %+v, %d queries", i, p.Title, p.ID, p.GridPos, len(p.Targets))
		}
		ids[p.ID] = true
		for _, other := range d.Panels[:i] {
			a, b := p.GridPos, other.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("panels %q and %q overlap", p.Title, other.Title)
			}
		}
		for _, target := range p.Targets {
			if names := unknown(target.Expr, known); len(names) > 0 {
				t.Errorf("panel %q asks for %v, which docs/metrics.md does not have", p.Title, names)
			}
		}
	}

	// A variable that no query has would be a list without effect.
	for _, variable := range []string{`namespace=~\"$namespace\"`, `cluster=~\"$cluster\"`} {
		if n := strings.Count(string(data), variable); n < 20 {
			t.Errorf("%d queries have %s", n, variable)
		}
	}
	// One Prometheus may have several own clusters, which differ by a label that only it knows.
	if !strings.Contains(string(data), `"type": "adhoc"`) {
		t.Error("no variable filters by any label")
	}

	text := testkit.Value(os.ReadFile("../docs/alerts.md"))(t)
	var lines []string
	for _, r := range rules(t) {
		if names := unknown(r.Expr, known); len(names) > 0 {
			t.Errorf("alert %s asks for %v, which docs/metrics.md does not have", r.Alert, names)
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" ||
			!slices.Contains([]string{"warning", "critical"}, r.Labels["severity"]) {
			t.Errorf("alert %s: labels %v, annotations %v", r.Alert, r.Labels, r.Annotations)
		}
		// Those of findings lead to the entry of the code.
		page, anchor := "alerts.md", r.Alert
		if strings.HasPrefix(r.Alert, "SemaphoreFinding") {
			page, anchor = "troubleshooting.md", "{{ $labels.code }}"
		}
		const repository = "https://github.com/kube-semaphore/semaphore/blob/main/docs/"
		if want := repository + page + "#" + anchor; r.Annotations["runbook_url"] != want {
			t.Errorf("alert %s: runbook_url %q, want %s", r.Alert, r.Annotations["runbook_url"], want)
		}
		line := fmt.Sprintf("| <a id=%q></a>`%s` | %s | %s | `%s` | ", r.Alert, r.Alert, r.Labels["severity"], r.For,
			strings.ReplaceAll(r.Expr, "|", "\\|"))
		if _, todo, found := strings.Cut(string(text), "\n"+line); !found || strings.HasPrefix(todo, "|") {
			t.Errorf("docs/alerts.md lacks %s, and what to do", line)
		}
		lines = append(lines, line)
	}
	if n := strings.Count(string(text), "\n| <a id=\"Semaphore"); n != len(lines) {
		t.Errorf("docs/alerts.md has %d alerts, of %d", n, len(lines))
	}
}

// TestMonitors: the monitor of the parts is of their own namespace, as Prometheus may have rights to no other. With the
// component, the exporter for a cluster without semaphore has one in its namespace.
func TestMonitors(t *testing.T) {
	values := apply.Values{Cluster: "c1", Namespace: "federation", Features: apply.AllFeatures,
		Components: []string{"monitors"}}
	foreign := apply.Foreign{Cluster: "c2", Reader: "c1", Features: apply.AllFeatures, Components: []string{"monitors"}}
	for namespace, objects := range map[string][]*unstructured.Unstructured{
		values.Namespace:    testkit.Value(apply.Build(values))(t),
		foreign.Namespace(): testkit.Value(apply.BuildForeign(foreign))(t),
	} {
		var monitor struct {
			Metadata metav1.ObjectMeta
			Spec     struct {
				NamespaceSelector any
				Selector          metav1.LabelSelector
			}
		}
		pods := map[string]string{}
		for _, o := range objects {
			switch o.GetKind() + " " + o.GetName() {
			case "PodMonitor semaphore":
				must(t, yaml.Unmarshal(testkit.Value(o.MarshalJSON())(t), &monitor))
			case "Deployment semaphore-exporter":
				pods, _, _ = unstructured.NestedStringMap(o.Object, "spec", "template", "metadata", "labels")
			}
		}
		selector := testkit.Value(metav1.LabelSelectorAsSelector(&monitor.Spec.Selector))(t)
		if monitor.Metadata.Namespace != namespace || monitor.Spec.NamespaceSelector != nil ||
			!selector.Matches(labels.Set(pods)) {
			t.Errorf("%+v does not select pods with %v in %s alone", monitor, pods, namespace)
		}
	}
}
