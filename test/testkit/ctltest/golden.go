package ctltest

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func Must1[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

var update = flag.Bool("update", false, "write testdata/*.golden and docs/cli.md, to be looked at and committed")

// testdata is an absolute path, because tests may change the directory.
var testdata = Must1(filepath.Abs("testdata"))

// Golden compares the output of a verb with testdata/NAME.golden, which a person has checked.
func Golden(t *testing.T, name, got string) {
	t.Helper()
	Compare(t, filepath.Join(testdata, name+".golden"), got)
}

func Compare(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		must(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must(t, os.WriteFile(file, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(file)
	must(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (go test -update writes it):\n%s", file, diff)
	}
}
