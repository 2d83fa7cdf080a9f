package program

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// logged is a log with bounds and with a clock that the test sets.
type logged struct {
	t       *testing.T
	written testkit.Buffer
	handler slog.Handler
	now     time.Time
}

func newLogged(t *testing.T) *logged {
	l := &logged{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	l.handler = newLimited(slog.NewTextHandler(&l.written, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return l
}

// say logs a line from a place in the code.
func (l *logged) say(h slog.Handler, place uintptr, level slog.Level, text string, args ...any) {
	l.t.Helper()
	r := slog.NewRecord(l.now, level, text, place)
	r.Add(args...)
	testkit.Must(l.t, h.Handle(l.t.Context(), r))
}

func (l *logged) count(text string) int { return strings.Count(l.written.String(), text) }

// TestLinesOfARetryAreLimited: a repeated line about one object leaves room for lines about other objects and with
// other texts. The next line has the number of omitted ones.
func TestLinesOfARetryAreLimited(t *testing.T) {
	l := newLogged(t)
	for range 4000 {
		l.now = l.now.Add(time.Millisecond)
		l.say(l.handler, 1, slog.LevelWarn, "cannot write", "name", "shop/echo", "error", l.now.String())
	}
	if n := l.count("name=shop/echo"); n != lineBurst {
		t.Errorf("%d lines of one object at once, want %d", n, lineBurst)
	}
	l.say(l.handler, 1, slog.LevelWarn, "cannot write", "name", "shop/other")
	l.say(l.handler, 1, slog.LevelInfo, "written again", "name", "shop/echo")
	for _, want := range []string{
		`msg="cannot write" name=shop/other notLogged=3990`, `msg="written again" name=shop/echo` + "\n",
	} {
		if l.count(want) != 1 {
			t.Errorf("%q is not in the log once:\n%s", want, l.written.String())
		}
	}
	before := l.count("name=shop/echo")
	for range 100 * int(lineEvery/time.Second) {
		l.now = l.now.Add(time.Second)
		l.say(l.handler, 1, slog.LevelWarn, "cannot write", "name", "shop/echo")
	}
	if n := l.count("name=shop/echo") - before; n != 100 {
		t.Errorf("%d lines of one object in 100 times %s, want 100", n, lineEvery)
	}
}

// TestLinesThatARemoteNamesAreLimited: a remote that causes lines about ever new names can fill neither the disk nor
// the memory, and does not use the room of other places in the code.
func TestLinesThatARemoteNamesAreLimited(t *testing.T) {
	l := newLogged(t)
	for i := range placeBurst + 1000 {
		l.say(l.handler, 1, slog.LevelWarn, "refused", "object", fmt.Sprint("o", i))
	}
	if n := l.count("msg=refused"); n != placeBurst {
		t.Errorf("%d lines at once, want %d", n, placeBurst)
	}
	for i := range 100 {
		l.now = l.now.Add(time.Second)
		l.say(l.handler, 1, slog.LevelWarn, "refused", "object", fmt.Sprint("p", i))
		l.say(l.handler, 1, slog.LevelWarn, "refused", "object", fmt.Sprint("q", i))
	}
	if n := l.count("msg=refused") - placeBurst; n != 100*placeRate {
		t.Errorf("%d lines in the 100 s after that, want %d", n, 100*placeRate)
	}
	l.say(l.handler, 2, slog.LevelWarn, "another place", "cluster", "c2")
	if l.count("another place") != 1 {
		t.Error("the lines of one place in the code are those of another")
	}
	if n := len(l.handler.(*limited).bounds.places[1].lines); n > linesMost {
		t.Errorf("%d lines are remembered, %d at most", n, linesMost)
	}
	// Lines that are no longer logged are forgotten, so that others have bounds of their own again.
	l.now = l.now.Add(lineBurst * lineEvery)
	for range 2 * lineBurst {
		l.say(l.handler, 1, slog.LevelWarn, "refused", "object", "again")
	}
	if n := l.count("object=again"); n != lineBurst {
		t.Errorf("%d lines of an object after others were remembered, want %d", n, lineBurst)
	}
}

// TestLinesOfLoggersAreLimited: a logger with a broker as its attribute has bounds of its own, and debug messages have
// none.
func TestLinesOfLoggersAreLimited(t *testing.T) {
	l := newLogged(t)
	c2 := l.handler.WithAttrs([]slog.Attr{slog.String("broker", "c2"), slog.String("address", "a")})
	c3 := l.handler.WithGroup("g").WithAttrs([]slog.Attr{slog.String("broker", "c3")})
	for range 100 {
		l.say(c2, 1, slog.LevelError, "the stream ended")
		l.say(c2, 2, slog.LevelDebug, "detail")
	}
	l.say(c3, 1, slog.LevelError, "the stream ended")
	for want, n := range map[string]int{"broker=c2 ": lineBurst + 100, "broker=c3": 1, "msg=detail": 100} {
		if got := l.count(want); got != n {
			t.Errorf("%d lines with %q, want %d:\n%s", got, want, n, l.written.String())
		}
	}
}
