package testkit

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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

func TestCaptureLog(t *testing.T) {
	before := slog.Default()
	t.Run("captures", func(t *testing.T) {
		log := CaptureLog(t)
		slog.Info("the device was set", "name", "wireguard.c2")
		if !strings.Contains(log.String(), "name=wireguard.c2") {
			t.Error(log)
		}
	})
	if slog.Default() != before {
		t.Error("the default logger is still the test's")
	}
}

func TestMetric(t *testing.T) {
	reg := prometheus.NewRegistry()
	writes := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "writes_total"}, []string{"cluster", "result"})
	reg.MustRegister(writes)
	writes.WithLabelValues("c2", "ok").Add(2)
	writes.WithLabelValues("c3", "ok").Add(3)
	writes.WithLabelValues("c3", "conflict").Add(5)
	for _, c := range []struct {
		labels []string
		sum    float64
		found  bool
	}{{nil, 10, true}, {[]string{"ok"}, 5, true}, {[]string{"conflict", "c3"}, 5, true},
		{[]string{"c2", "conflict"}, 0, false}} {
		if sum, found := Metric(t, reg, "writes_total", c.labels...); sum != c.sum || found != c.found {
			t.Errorf("%v: %v, %v", c.labels, sum, found)
		}
	}
}

func TestCommand(t *testing.T) {
	if got := Command(t, "printf", "%s.", "a b"); got != "a b." {
		t.Errorf("%q", got)
	}
	text := ending(t, func(tb testing.TB) { Command(tb, "sh", "-c", "echo bad >&2; exit 3") })
	if text != "sh -c echo bad >&2; exit 3: exit status 3\nbad\n" {
		t.Errorf("the failure is reported as %q", text)
	}
}

// where is a namespace that runs in this process, or does not exist.
type where struct{ err error }

func (where) Name() string { return "here" }
func (w where) Do(f func() error) error {
	if w.err != nil {
		return w.err
	}
	return f()
}

func TestCommandIn(t *testing.T) {
	Must(t, CommandIn(where{}, "test", "a b", "=", "a b"))
	for text, err := range map[string]error{
		"sh -c echo bad; exit 3 in here: exit status 3\nbad\n": CommandIn(where{}, "sh", "-c", "echo bad; exit 3"),
		"true x in here: it is gone\n":                         CommandIn(where{errors.New("it is gone")}, "true", "x"),
	} {
		if err == nil || err.Error() != text {
			t.Errorf("%v; want %s", err, text)
		}
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
