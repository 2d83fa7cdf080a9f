package broker

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/finding"
)

// TestSecurityDocumentNamesTestsAndCodes checks that docs/security.md names a test and its package for each rule and
// has every code of a refusal. docs.TestNamesOfTests checks that the tests exist.
func TestSecurityDocumentNamesTestsAndCodes(t *testing.T) {
	data, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	// "`TestA`, `TestB` (dir)": names, and then the directory of all of them.
	group := regexp.MustCompile("((?:`(?:Test|Fuzz)\\w+`(?:, )?)+) \\(([\\w/]+)\\)")
	name := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
	named := 0
	for _, g := range group.FindAllString(text, -1) {
		named += len(name.FindAllString(g, -1))
	}
	if all := len(name.FindAllString(text, -1)); all != named {
		t.Errorf("%d names of tests, and %d of them with a directory", all, named)
	}
	for rule := 1; rule <= 28; rule++ {
		if !regexp.MustCompile(`(?m)^\| R` + strconv.Itoa(rule) + ` \| [^|]+ \| [^|]+ \| [^|]+ \|$`).MatchString(text) {
			t.Errorf("no row for R%d that names a test and a cost", rule)
		}
	}

	codes := finding.Of(finding.Refusals)
	for _, code := range codes {
		if strings.Count(text, "\n| `"+string(code)+"` | ") != 1 {
			t.Errorf("the code %s has no row of its own", code)
		}
	}
	if rows := strings.Count(text[strings.Index(text, "\n| Code |"):strings.Index(text,
		"\nOf an object that is refused in part")], "\n| `"); rows != len(codes) {
		t.Errorf("%d codes, %d rows", len(codes), rows)
	}
}
