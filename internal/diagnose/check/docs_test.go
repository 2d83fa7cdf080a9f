package check

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// docs/certificates.md has every code, and no others.
func TestCodesAreDocumented(t *testing.T) {
	var source []byte
	for _, file := range []string{"judge.go", "dns.go", "calico.go", "policies.go"} {
		text, err := os.ReadFile(file)
		must(t, err)
		source = append(source, text...)
	}
	var codes []string
	for _, m := range regexp.MustCompile(`(?:Code: |bad\(|\bCode(?:, (?:f|clock)\.\w+)* = )"([a-z-]+)"`).FindAllStringSubmatch(string(source), -1) {
		codes = append(codes, m[1])
	}
	for _, kind := range []string{"certificate", "root", "peer"} {
		codes = append(codes, kind, kind+"-expired", kind+"-not-yet-valid", kind+"-expires-soon")
	}
	if len(codes) < 30 {
		t.Fatalf("only %d codes found in the source", len(codes))
	}
	data, err := os.ReadFile("../../../docs/certificates.md")
	must(t, err)
	_, table, found := strings.Cut(string(data), "| Code | Means |")
	if !found {
		t.Fatal("no table of codes")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	var documented []string
	for line := range strings.Lines(table) {
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
		for _, m := range regexp.MustCompile("`([a-z-]+)`").FindAllStringSubmatch(first, -1) {
			documented = append(documented, m[1])
		}
	}
	for _, c := range codes {
		if !slices.Contains(documented, c) {
			t.Errorf("%s is not documented", c)
		}
	}
	for _, c := range documented {
		if !slices.Contains(codes, c) {
			t.Errorf("%s is documented, but there is no such code", c)
		}
	}
}
