package docs_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestRulesNameTests checks that docs/rules.md names a test and its package for each rule. TestNamesOfTests checks that
// the tests exist.
func TestRulesNameTests(t *testing.T) {
	text := read(t, "docs/rules.md")
	name := regexp.MustCompile("`(?:Test|Benchmark|Fuzz)\\w+`")
	named := 0
	for _, group := range namesOfPackage.FindAllString(text, -1) {
		named += len(name.FindAllString(group, -1))
	}
	if all := len(name.FindAllString(text, -1)); all != named {
		t.Errorf("%d names of tests, and %d of them with a directory", all, named)
	}
	for rule := 1; rule <= 31; rule++ {
		if !regexp.MustCompile(`(?m)^\| R` + strconv.Itoa(rule) + ` \| [^|]+ \| [^|]+ \| [^|]+ \|$`).MatchString(text) {
			t.Errorf("no row for R%d that names a test and a cost", rule)
		}
	}
}

// TestDecodersAreFuzzed: the table of decoders in docs/rules.md has each fuzz target of the repository, with its
// directory.
func TestDecodersAreFuzzed(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "docs/rules.md"), "## Decoders")
	found := 0
	for name, directories := range testsOfTheTree(t) {
		if !strings.HasPrefix(name, "Fuzz") {
			continue
		}
		for _, directory := range directories {
			found++
			if !regexp.MustCompile("`" + name + "`(, `Fuzz\\w+`)* \\(" + directory + "\\)").MatchString(table) {
				t.Errorf("no row has %s (%s)", name, directory)
			}
		}
	}
	if found < 38 {
		t.Errorf("%d targets: the search does not work", found)
	}
}
