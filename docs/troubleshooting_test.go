package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestTroubleshootingHasEachCode: a code that status, check or an Event prints has its place, with cause and fix. One
// that says that all is well needs none.
func TestTroubleshootingHasEachCode(t *testing.T) {
	pages := map[string]string{}
	for _, d := range finding.All() {
		page, anchor, _ := strings.Cut(d.Code.Anchor(), "#")
		if pages[page] == "" {
			pages[page] = read(t, page)
		}
		if d.Level != finding.OK && !strings.Contains(pages[page], `<a id="`+anchor+`"></a>`) {
			t.Errorf("the code %s (%s) has no anchor in %s", d.Code, d.Area, page)
		}
	}
}

// TestCodesAreWrittenOnce: the parts use the codes of internal/finding, and write none of them a second time. Only
// codes of several words can be found: others are common words.
func TestCodesAreWrittenOnce(t *testing.T) {
	source := sources(t)
	composed := regexp.MustCompile(`^(?:Certificate|Root|ListenerCertificate)(?:Valid|NotYetValid|Expired|ExpiresSoon)$`)
	looked, written := 0, map[string]int{}
	for _, m := range regexp.MustCompile(`"(\w+)"`).FindAllStringSubmatch(source, -1) {
		written[m[1]]++
	}
	for _, d := range finding.All() {
		if !regexp.MustCompile(`[a-z][A-Z]`).MatchString(string(d.Code)) {
			continue
		}
		looked++
		times := written[string(d.Code)]
		if times != 1 && !(times == 0 && composed.MatchString(string(d.Code))) {
			t.Errorf("the code %s is written %d times", d.Code, times)
		}
	}
	unregistered := regexp.MustCompile(`\b(?:Blocker\([^,]+, |(?:add|bad|failed|refuse|New|Lines?|Detail)\()` +
		`"(?:[A-Z][A-Za-z]+|[a-z]+(?:-[a-z]+)+)", .*`)
	for _, m := range unregistered.FindAllString(source, -1) {
		t.Errorf("a code of no registry: %.100s", m)
	}
	if looked < 70 {
		t.Errorf("%d codes were looked for", looked)
	}
}

// TestConditionsHaveRegisteredReasons: what writes conditions of RemoteClusters takes their reasons from the registry,
// and writes none itself.
func TestConditionsHaveRegisteredReasons(t *testing.T) {
	own := regexp.MustCompile(`"[A-Z][a-zA-Z]+"`)
	for _, file := range []string{"broker/report/remotestatus.go", "exporter/following.go", "internal/remotes/decide.go"} {
		text := read(t, file)
		if !strings.Contains(text, "finding.") {
			t.Errorf("%s takes nothing from the registry", file)
		}
		for _, m := range own.FindAllString(text, -1) {
			t.Errorf("%s has the reason %s of its own", file, m)
		}
	}
	types := []string{"Ready", "Accepted", "Connected", "Exporting", "Healthy"}
	for _, code := range finding.Of(finding.Conditions) {
		if d := code.Definition(); d.Level != finding.OK && !slices.Contains(types, d.Condition) {
			t.Errorf("%s: RemoteClusters have no condition %q", code, d.Condition)
		}
	}
}

// TestCodesAreDocumented: the tables of a command have every code of it that is a problem, and no others.
func TestCodesAreDocumented(t *testing.T) {
	var checks []string
	for _, code := range finding.Of(finding.Checks) {
		if code.Definition().Level != finding.OK {
			checks = append(checks, string(code))
		}
	}
	_, section, _ := strings.Cut(read(t, "docs/checks.md"), "\n## Codes of check\n")
	section, _, _ = strings.Cut(section, "\n## ")
	section = strings.Replace(section, `<a id="check-connections"></a>`, "", 1)
	sameCodes(t, "docs/checks.md", checks, section, "<a id=\"([A-Za-z]+)\"></a>`")

	// check --pre has codes of its own, and shares others.
	preflight := []string{string(finding.AffinityNotStrict), string(finding.PoolMissing), string(finding.SubnetsOverlap),
		string(finding.ClusterNameTaken), string(finding.BothUnreachable)}
	for _, code := range finding.Of(finding.Preflights) {
		preflight = append(preflight, string(code))
	}
	_, table, _ := strings.Cut(read(t, "docs/install.md"), "| Code | Means |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := regexp.MustCompile(`(?m)^\|([^|]*)\|.*$`).ReplaceAllString(table, "$1")
	sameCodes(t, "docs/install.md", preflight, rows, "`([A-Za-z]+)`")
}

// sameCodes compares the codes of a command with those that a pattern finds in a page.
func sameCodes(t *testing.T, page string, codes []string, text, pattern string) {
	t.Helper()
	var documented []string
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		documented = append(documented, m[1])
	}
	slices.Sort(codes)
	slices.Sort(documented)
	if codes = slices.Compact(codes); len(codes) < 15 || !slices.Equal(codes, documented) {
		t.Errorf("the command has %v, %s %v", codes, page, documented)
	}
}

// TestTroubleshootingQuotesTheCode: each message that the pages quote is one that the code prints.
func TestTroubleshootingQuotesTheCode(t *testing.T) {
	source := sources(t)
	quoted := 0
	for _, page := range []string{"docs/troubleshooting.md", "docs/checks.md", "docs/explain.md"} {
		quoted += quotes(t, page, source)
	}
	if quoted < 80 {
		t.Errorf("%d pieces of messages were found", quoted)
	}
}

// quotes counts the pieces of messages that the tables of a page quote, and reports those that are in no source.
func quotes(t *testing.T, page, source string) (quoted int) {
	table := ""
	for n, line := range strings.Split(read(t, page), "\n") {
		switch {
		case !strings.HasPrefix(line, "|"):
			table = ""
		case table == "":
			table, _, _ = strings.Cut(strings.TrimPrefix(line, "| "), " |")
		}
		if table != "Message" {
			continue
		}
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), " | ")
		first = strings.ReplaceAll(first, "``add `namespaceSelector: global()` beside the selector``",
			"`namespaceSelector: global()`")
		for _, quote := range span.FindAllString(first, -1) {
			for _, part := range strings.Split(strings.Trim(quote, "`"), "…") {
				part = strings.Trim(part, " ():,;")
				if len(part) < 4 {
					continue
				}
				quoted++
				if !strings.Contains(source, part) {
					t.Errorf("%s:%d: no part prints %q", page, n+1, part)
				}
			}
		}
	}
	return quoted
}

func read(t *testing.T, file string) string {
	t.Helper()
	return string(testkit.Value(os.ReadFile(filepath.Join("..", file)))(t))
}

// sources are the files of the product, as one text in which a message that is written as several strings is one.
func sources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, file := range product(t) {
		all.WriteString(read(t, file))
	}
	return regexp.MustCompile(`"\s*\+\s*"`).ReplaceAllString(all.String(), "")
}
