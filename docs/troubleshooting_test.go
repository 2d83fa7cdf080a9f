package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// codesOf are where codes are defined, and how: each code has an anchor in docs/troubleshooting.md, so that a link can lead to it.
var codesOf = []struct {
	file string
	code *regexp.Regexp
	// least is fewer than there are, so that an expression that finds nothing is an error.
	least int
}{
	{"docs/certificates.md", regexp.MustCompile("(?m)^\\|((?: `[a-z-]+`,?)+) \\|"), 25}, // a test of internal/diagnose/check has them complete
	{"broker/admission/admission.go", regexp.MustCompile(`Code = "([a-z-]+)"`), 14},
	{"exporter/catalog/problems.go", regexp.MustCompile(`Reason = "([a-z-]+)"`), 8},
	{"exporter/feedback/feedback.go", regexp.MustCompile(`(?m)^\t(?:Offered|NotOffered|Refused) += "([A-Za-z]+)"`), 3},
	{"broker/mirror/problems.go", regexp.MustCompile(`(?m)^\t(?:NotMirrored|Differs) += "([A-Za-z]+)"`), 2},
	{"broker/mesh/mesh.go", regexp.MustCompile(`const PeerRefused = "([A-Za-z]+)"`), 1},
	{"broker/presence/presence.go", regexp.MustCompile(`Warn\("(ClusterGone)"`), 1},
	{"broker/apply/objects.go", regexp.MustCompile(`, "([A-Z][A-Za-z]+)", `), 4},
	{"broker/apply/drains.go", regexp.MustCompile(`"(DrainUnreadable)"`), 1},
}

// noProblem are codes that say that all is well.
var noProblem = []string{"certificate", "root", "peer", "connection", "clock", "coredns", "policies", "pools", "strict-affinity"}

// TestTroubleshootingHasEachCode: a code that status, check or an Event prints has its place, with cause and fix.
func TestTroubleshootingHasEachCode(t *testing.T) {
	page := read(t, "docs/troubleshooting.md")
	for _, of := range codesOf {
		found := 0
		for _, match := range of.code.FindAllStringSubmatch(read(t, of.file), -1) {
			for _, code := range strings.FieldsFunc(match[1], func(r rune) bool { return strings.ContainsRune(" `,", r) }) {
				found++
				if !slices.Contains(noProblem, code) && !strings.Contains(page, `<a id="`+code+`"></a>`) {
					t.Errorf("%s has the code %s, and docs/troubleshooting.md has no anchor of it", of.file, code)
				}
			}
		}
		if found < of.least {
			t.Errorf("%s: %d codes were found, where there are %d and more", of.file, found, of.least)
		}
	}
}

// TestTroubleshootingQuotesTheCode: each message that the page quotes is one that the code prints.
func TestTroubleshootingQuotesTheCode(t *testing.T) {
	source := sources(t)
	quoted := 0
	table := ""
	for n, line := range strings.Split(read(t, "docs/troubleshooting.md"), "\n") {
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
		first = strings.ReplaceAll(first, "``add `namespaceSelector: global()` beside the selector``", "`namespaceSelector: global()`")
		for _, quote := range span.FindAllString(first, -1) {
			for _, part := range strings.Split(strings.Trim(quote, "`"), "…") {
				part = strings.Trim(part, " ():,;")
				if len(part) < 4 {
					continue
				}
				quoted++
				if !strings.Contains(source, part) {
					t.Errorf("docs/troubleshooting.md:%d: no part prints %q", n+1, part)
				}
			}
		}
	}
	if quoted < 80 {
		t.Errorf("%d pieces of messages were found", quoted)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", file))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// sources are the files of the product, as one text in which a message that is written as several strings is one.
func sources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range []string{"agent", "broker", "exporter", "internal"} {
		err := filepath.WalkDir(filepath.Join("..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			data, err := os.ReadFile(path)
			all.Write(data)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return regexp.MustCompile(`"\s*\+\s*"`).ReplaceAllString(all.String(), "")
}
