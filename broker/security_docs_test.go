package broker

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestRulesNameTests checks that docs/rules.md names a test and its package for each rule. docs.TestNamesOfTests checks
// that the tests exist.
func TestRulesNameTests(t *testing.T) {
	text := string(testkit.Value(os.ReadFile("../docs/rules.md"))(t))
	// "`TestA`, `TestB` (dir)": names, and then the directory of all of them.
	group := regexp.MustCompile("((?:`(?:Test|Fuzz)\\w+`(?:,\\s+)?)+)\\s+\\(([\\w/]+)\\)")
	name := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
	named := 0
	for _, g := range group.FindAllString(text, -1) {
		named += len(name.FindAllString(g, -1))
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
	data, err := os.ReadFile("../docs/rules.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(data), "## Decoders")
	target := regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)
	found := 0
	err = filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != ".." {
			return cmp.Or(err, fs.SkipDir)
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range target.FindAllStringSubmatch(string(text), -1) {
			found++
			directory := strings.TrimPrefix(filepath.Dir(path), "../")
			if !regexp.MustCompile("`" + m[1] + "`(, `Fuzz\\w+`)* \\(" + directory + "\\)").MatchString(table) {
				t.Errorf("no row has %s (%s)", m[1], directory)
			}
		}
		return err
	})
	if err != nil || found < 39 {
		t.Errorf("%d targets: %v", found, err)
	}
}
