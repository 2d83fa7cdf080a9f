package testkit

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// failed is a testing.TB that records how the test ended.
type failed struct {
	testing.TB
	text string
}

func (f *failed) Helper() {}

func (f *failed) Fatalf(format string, args ...any) {
	f.text = fmt.Sprintf(format, args...)
	panic(f)
}

func (f *failed) Skip(args ...any) {
	f.text = "skipped: " + fmt.Sprint(args...)
	panic(f)
}

// ending runs f as a test, and returns the reason why it failed or was skipped.
func ending(t *testing.T, f func(tb testing.TB)) (text string) {
	tb := &failed{TB: t}
	defer func() {
		if r := recover(); r != nil && r != any(tb) {
			panic(r)
		}
		text = tb.text
	}()
	f(tb)
	return ""
}

func TestEventuallyFailsWithTheLastError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, begin := 0, time.Now()
		text := ending(t, func(tb testing.TB) {
			Eventually(tb, time.Second, "the peer answers", func() error {
				calls++
				return fmt.Errorf("call %d", calls)
			})
		})
		if want := fmt.Sprintf("the peer answers: not within 1s: call %d", calls); text != want {
			t.Errorf("%q; want %q", text, want)
		}
		if took := time.Since(begin); took <= time.Second || took > time.Second+maxPause {
			t.Errorf("it waited %s, not a second", took)
		}
	})
}

// TestEventuallyMeasures: the result is at most 1 % or 2 ms too late.
func TestEventuallyMeasures(t *testing.T) {
	for _, after := range []time.Duration{0, 5 * time.Millisecond, 300 * time.Millisecond, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			took := Eventually(t, time.Minute, "it is time", True(func() bool { return time.Since(begin) >= after }))
			if late := took - after; late < 0 || late > max(minPause, after/100) {
				t.Errorf("%s for what was so after %s", took, after)
			}
		})
	}
}

// TestEventuallySparesTheMachine: a slow check is not called without pauses.
func TestEventuallySparesTheMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		ending(t, func(tb testing.TB) {
			Eventually(tb, time.Second, "it is so", func() error {
				calls++
				time.Sleep(10 * time.Millisecond)
				return errors.New("no")
			})
		})
		if calls > 52 {
			t.Errorf("%d checks of 10 ms within a second", calls)
		}
	})
}

func TestStateSaysWhatItSaw(t *testing.T) {
	text := ending(t, func(tb testing.TB) {
		Eventually(tb, 0, "two peers", State(func() (bool, string) { return false, "one peer" }))
	})
	if !strings.HasSuffix(text, "last seen: one peer") {
		t.Error(text)
	}
}

// TestLacks: CI skips no test because of something that the machine lacks.
func TestLacks(t *testing.T) {
	t.Setenv("CI", "true")
	if text := ending(t, func(tb testing.TB) { Lacks(tb, "no %s", "wheel") }); text !=
		"no wheel, and CI=true does not allow a skip" {
		t.Errorf("in CI it ends with %q", text)
	}
	t.Setenv("CI", "")
	t.Setenv(tier.Variable, "all")
	if text := ending(t, func(tb testing.TB) { Lacks(tb, "no %s", "wheel") }); text != "NOT TESTED: no wheel" {
		t.Errorf("where everything is to be tested it ends with %q", text)
	}
	t.Setenv(tier.Variable, "")
	if text := ending(t, func(tb testing.TB) { Lacks(tb, "no %s", "wheel") }); text !=
		"skipped: NOT TESTED: no wheel" {
		t.Errorf("elsewhere it ends with %q", text)
	}
}

// TestNotTested: make test-all fails for what could not be tested; make test counts it, with the tests that it runs for
// a change, too.
func TestNotTested(t *testing.T) {
	for value, want := range map[string]string{
		"all":        "error NOT TESTED: no wheel",
		tier.Changed: "log NOT TESTED: no wheel",
		"":           "log NOT TESTED: no wheel",
	} {
		t.Setenv(tier.Variable, value)
		said := &lines{TB: t}
		tier.NotTested(said, "no %s", "wheel")
		if said.text != want {
			t.Errorf("with %s=%q: %q; want %q", tier.Variable, value, said.text, want)
		}
		if all := tier.All(); all != (value != "") {
			t.Errorf("with %s=%q all tests run: %t", tier.Variable, value, all)
		}
	}
}

// lines records what a test says.
type lines struct {
	testing.TB
	text string
}

func (l *lines) Logf(format string, args ...any)   { l.text += "log " + fmt.Sprintf(format, args...) }
func (l *lines) Errorf(format string, args ...any) { l.text += "error " + fmt.Sprintf(format, args...) }
