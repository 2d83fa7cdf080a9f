// Package tier names the tests that run in make test-all alone. make test has what a change has to pass in half an
// hour; make test-all, each night and before a release, has all. docs/faults.md lists the difference.
//
// It is for tests only.
package tier

import (
	"os"
	"testing"
)

const Variable = "SEMAPHORE_TESTS"

// Changed is the value of the variable where make test runs the tests of make test-all that a change is most likely
// to break.
const Changed = "changed"

func everything() bool { return os.Getenv(Variable) == "all" }

// All reports whether the tests of make test-all run.
func All() bool { return everything() || os.Getenv(Variable) == Changed }

// OnlyAll skips a test that make test leaves to make test-all. why names what make test has instead.
func OnlyAll(t testing.TB, why string) {
	t.Helper()
	if !All() {
		t.Skipf("only in make test-all (%s=all): %s", Variable, why)
	}
}

// Marker begins the line of something that a test had to leave out. make counts these lines at its end.
const Marker = "NOT TESTED:"

// NotTested says that the test could not look at something, for example because the machine was too busy or lacks a
// feature of the kernel. In make test-all this is a failure; make test counts it, with tests that a change runs, too.
func NotTested(t testing.TB, format string, args ...any) {
	t.Helper()
	if everything() {
		t.Errorf(Marker+" "+format, args...)
		return
	}
	t.Logf(Marker+" "+format, args...)
}
