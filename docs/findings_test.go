package docs_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// ofParts are the areas of codes that parts report. The others are of verbs of semaphorectl, which no metric has.
var ofParts = []finding.Area{finding.Refusals, finding.Exports, finding.Offers, finding.Services, finding.Events,
	finding.Conditions, finding.Status}

// reported reports whether a part reports a code as something wrong.
func reported(d finding.Definition) bool {
	return d.Level != finding.OK && d.Level != finding.NotChecked && slices.Contains(ofParts, d.Area)
}

// TestEachCodeHasOneMeaning: a code has one level, one side, one command, one alert and one section, wherever it is
// met.
func TestEachCodeHasOneMeaning(t *testing.T) {
	var object struct {
		Spec struct {
			Groups []struct {
				Rules []struct{ Alert, Expr string }
			}
		}
	}
	testkit.Must(t, yaml.Unmarshal([]byte(read(t, "deploy/features/alerts/rules.yaml")), &object))
	alerts := map[string]string{}
	for _, r := range object.Spec.Groups[0].Rules {
		alerts[r.Alert] = r.Expr
	}
	excluded := regexp.MustCompile(`code!~"([^"]*)"`)
	own := map[string][]string{} // codes with an alert of their own, by the alert of their level
	for _, d := range finding.All() {
		if !reported(d) {
			continue
		}
		if !slices.Contains([]finding.Side{finding.Here, finding.Remote, finding.Both}, d.Side) ||
			!regexp.MustCompile(`^(semaphorectl|kubectl|ip|nft|wg|sysctl|ls|df) `).MatchString(d.Command) {
			t.Errorf("%s: side %q, command %q", d.Code, d.Side, d.Command)
		}
		if !slices.Contains([]string{"", "Ready", "Accepted", "Connected", "Exporting", "Healthy"}, d.Condition) {
			t.Errorf("%s: RemoteClusters have no condition %q", d.Code, d.Condition)
		}
		if d.Alert == finding.NoAlert {
			continue
		}
		if alerts[d.Alert] == "" {
			t.Errorf("%s: deploy/features/alerts has no alert %q", d.Code, d.Alert)
		}
		generic := finding.AlertOfErrors
		if d.Level == finding.Warning {
			generic = finding.AlertOfWarnings
		}
		if d.Alert != generic {
			own[generic] = append(own[generic], string(d.Code))
		}
	}
	for _, generic := range []string{finding.AlertOfErrors, finding.AlertOfWarnings} {
		slices.Sort(own[generic])
		want := strings.Join(own[generic], "|")
		if m := excluded.FindStringSubmatch(alerts[generic]); m == nil || m[1] != want {
			t.Errorf("%s fires for codes that have an alert of their own, or for others not: it is to leave out code!~%q",
				generic, want)
		}
	}
}

// TestAlertsOfFindingsHaveASeries: a code whose alert is that of its level is in semaphore_findings: a part has
// findings of it for a scrape, besides Events, conditions and what semaphorectl finds.
func TestAlertsOfFindingsHaveASeries(t *testing.T) {
	elsewhere := regexp.MustCompile(`^(ctl/|internal/diagnose/|broker/report/|exporter/(report/|following\.go))`)
	code := regexp.MustCompile(`\bfinding\.(\w+)`)
	counted := map[string]bool{}
	for _, file := range product(t) {
		text := read(t, file)
		switch file {
		case "internal/finding/verdict.go": // in its own package a code has no prefix
			text = regexp.MustCompile(`\b(New|of)\(|\.Code = `).ReplaceAllString(text, " finding.")
		case "agent/status/report.go":
			text, _, _ = strings.Cut(text, "\n// AddKernel ") // for a status only
		}
		for line := range strings.Lines(text) {
			if !elsewhere.MatchString(file) && !strings.Contains(line, "Warn(") && !strings.Contains(line, "WarnOf(") {
				for _, is := range code.FindAllStringSubmatch(line, -1) {
					counted[is[1]] = true
				}
			}
		}
	}
	for _, d := range finding.All() {
		if reported(d) && (d.Alert == finding.AlertOfErrors || d.Alert == finding.AlertOfWarnings) &&
			!counted[string(d.Code)] {
			t.Errorf("%s has the alert %s, and no part counts it", d.Code, d.Alert)
		}
	}
}

// TestFindingsAreDocumented: docs/findings.md has each code as the registry has it.
func TestFindingsAreDocumented(t *testing.T) {
	var want strings.Builder
	want.WriteString("\n## Codes\n\n| Code | Of | Level | Meaning | Who can act | Command | Alert | Condition |\n" +
		"| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, d := range finding.All() {
		if !reported(d) {
			continue
		}
		want.WriteString("| [`" + string(d.Code) + "`](troubleshooting.md#" + string(d.Code) + ") | " +
			string(d.Area) + " | " + string(d.Level) + " | " +
			d.Meaning + " | " + strings.ReplaceAll(string(d.Side), "-", " ") + " | `" + d.Command + "` | `" + d.Alert + "` | " +
			d.Condition + " |\n")
	}
	before, after, found := strings.Cut(read(t, "docs/findings.md"), "\n## ")
	if os.Getenv("UPDATE_FINDINGS") != "" {
		testkit.Must(t, os.WriteFile("findings.md", []byte(before+want.String()), 0o644))
		return
	}
	if !found || "\n## "+after != want.String() {
		t.Errorf("docs/findings.md is not as internal/finding is: run UPDATE_FINDINGS=1 go test ./docs -run " +
			"TestFindingsAreDocumented")
	}
}
