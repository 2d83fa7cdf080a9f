package leader

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestSleep: time in which the machine slept counts, and a clock that was set takes nothing off.
func TestSleep(t *testing.T) {
	noon := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		steady, wall, want time.Duration
	}{
		"the machine ran":               {3 * time.Second, 3 * time.Second, 3 * time.Second},
		"the machine slept":             {time.Second, time.Hour, time.Hour},
		"the clock was set back":        {20 * time.Second, -time.Hour, 20 * time.Second},
		"the clock was set forward":     {time.Second, time.Hour, time.Hour},
		"slept, and was set back a bit": {time.Second, 50 * time.Minute, 50 * time.Minute},
	} {
		renewed := instant{time.Minute, noon}
		if got := (instant{time.Minute + c.steady, noon.Add(c.wall)}).after(renewed); got != c.want {
			t.Errorf("%s: renewed %s ago, want %s", name, got, c.want)
		}
	}
	now := time.Now()
	if got := instantOf(now.Add(time.Minute)).after(instantOf(now)); got != time.Minute {
		t.Errorf("a minute later is %s later", got)
	}
}

// TestGuard: a replica may write until the deadline of its last renewal, or until it has seen another holder. It may
// read at any time, and a replica that never led may write.
func TestGuard(t *testing.T) {
	const duration = 15 * time.Second
	for _, c := range []struct {
		name       string
		held, over bool
		age        time.Duration
		writes     bool
	}{
		{"a standby", false, false, time.Hour, true},
		{"a leader", true, false, 0, true},
		{"a leader shortly before the deadline", true, false, duration*2/3 - time.Second, true},
		{"a leader that was suspended", true, false, duration * 2 / 3, false},
		{"a leader that saw another", true, true, 0, false},
	} {
		e := &Elector{lock: newLease(nil, "semaphore", "lease", "me_1", slog.Default()),
			options: Options{Config: config.LeaderElection{Duration: config.Duration{Duration: duration}}}}
		e.lock.held, e.lock.over, e.lock.renewedAt = c.held, c.over, time.Now().Add(-c.age)
		sent := 0
		guarded := e.Guard(kubetest.RoundTripper(func(*http.Request) (*http.Response, error) {
			sent++
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		}))
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			before := sent
			answer, err := guarded.RoundTrip(httptest.NewRequest(method, "/", strings.NewReader("body")))
			if err == nil {
				_ = answer.Body.Close()
			}
			if wrote := sent > before; wrote != c.writes || errors.Is(err, ErrDeposed) == c.writes {
				t.Errorf("%s: %s is sent: %t, %v", c.name, method, wrote, err)
			}
		}
		before := sent
		if answer, err := guarded.RoundTrip(httptest.NewRequest(http.MethodGet, "/", nil)); err != nil || sent == before {
			t.Errorf("%s does not read: %v", c.name, err)
		} else {
			_ = answer.Body.Close()
		}
	}
	none := &Elector{}
	next := kubetest.RoundTripper(func(*http.Request) (*http.Response, error) { return nil, nil })
	if _, wrapped := none.Guard(next).(guarded); wrapped {
		t.Error("without election there is a guard")
	}
}
