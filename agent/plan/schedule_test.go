package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/internal/waiting"
)

// TestContest: the first heals are immediate, those of a writer that continues come less and less often and are
// reported, and a quiet period ends the contest.
func TestContest(t *testing.T) {
	var c scheduled
	now := time.Unix(1_000_000, 0)
	var pauses []string
	for range 20 {
		c.healed.Add(heals, now)
		pauses = append(pauses, c.pause(now).String())
		if reported := c.contest(now) != nil; reported != (c.pause(now) > 0) {
			t.Errorf("reported %v with a pause of %s", reported, c.pause(now))
		}
		now = now.Add(c.pause(now) + time.Second)
	}
	if got, want := strings.Join(pauses, " "),
		strings.Repeat("0s ", 10)+"1s 2s 4s 8s 16s 30s 30s 30s 30s 30s"; got != want {
		t.Errorf("pauses %s\nwant   %s", got, want)
	}
	now = now.Add(heals.Calm)
	if c.pause(now) != 0 || c.contest(now) != nil {
		t.Errorf("after a minute of peace the pause is %s: %v", c.pause(now), c.contest(now))
	}
	c.healed.Add(heals, now)
	if c.pause(now) != 0 {
		t.Errorf("the first heal after peace has a pause of %s", c.pause(now))
	}
}

// The first heal after a whole heals.Calm starts the count again.
func TestContestEnds(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	c := scheduled{healed: waiting.Repeats{Times: heals.Free, Last: now}}
	c.healed.Add(heals, now.Add(heals.Calm))
	if c.healed.Times != 1 {
		t.Errorf("%d heals after %s of quiet", c.healed.Times, heals.Calm)
	}
	c = scheduled{healed: waiting.Repeats{Times: heals.Free, Last: now}}
	c.healed.Add(heals, now.Add(heals.Calm-1))
	if c.healed.Times != heals.Free+1 {
		t.Errorf("%d heals, the last one within %s", c.healed.Times, heals.Calm)
	}
}

// exactly returns a Scheduler whose delays have no jitter.
func exactly() *Scheduler {
	s := NewScheduler()
	s.jitter = func(d time.Duration) time.Duration { return d }
	return s
}

var start = time.Unix(1_000_000, 0)

func work(devices ...string) Work {
	w := NewWork()
	for _, cluster := range devices {
		w.Networks[cluster] = true
	}
	return w
}

func heal(devices ...string) Work {
	w := NewWork()
	for _, cluster := range devices {
		w.Heal[cluster] = true
	}
	return w
}

func peers(cluster, node string) Work {
	w := NewWork()
	w.Peers[cluster] = map[string]bool{node: true}
	return w
}

// TestCheckInterval: with a thousand peers, changes of others are healed within a second, after two checks; with more
// peers, checks take no more CPU time.
func TestCheckInterval(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		devices, peers int
		want           time.Duration
	}{
		{1, 0, 300 * time.Millisecond}, {1, 1000, 300 * time.Millisecond}, {1, 5000, 2700 * time.Millisecond},
		{4, 800, 300 * time.Millisecond}, {100, 5000, 3390 * time.Millisecond}, {1, 1_000_000, 30 * time.Second},
	} {
		if got := checkInterval(c.devices, c.peers); got != c.want {
			t.Errorf("%d devices, %d peers: every %s, want %s", c.devices, c.peers, got, c.want)
		}
	}
}

// TestVanishedDeviceIsRetriedImmediately: a device that disappeared while it was being set is retried immediately, and
// then like any other.
func TestVanishedDeviceIsRetriedImmediately(t *testing.T) {
	t.Parallel()
	s := exactly()
	for i, want := range []time.Duration{0, 2 * time.Second, 4 * time.Second} {
		s.Failed("c2", start, false)
		s.Vanished("c2", start)
		if got := s.Next(start).Sub(start); got != want {
			t.Errorf("failure %d is tried again after %s; want %s", i, got, want)
		}
	}
}

// TestRetry: retries come after one second, then after twice as long, up to 30 s, with jitter of at most a half; a
// success resets the wait.
func TestRetry(t *testing.T) {
	t.Parallel()
	s := exactly()
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30, 30} {
		s.Failed("c2", start, false)
		if got := s.Next(start).Sub(start); got != want*time.Second {
			t.Errorf("failure %d is tried again after %s; want %s", i, got, want*time.Second)
		}
	}
	s.Succeeded("c2")
	if next := s.Next(start); !next.IsZero() {
		t.Errorf("after a success it is tried again at %s", next)
	}
	s.Failed("c2", start, false)
	if got := s.Next(start).Sub(start); got != time.Second {
		t.Errorf("the first failure after a success is tried again after %s", got)
	}
	for range 1000 {
		if d := NewScheduler().jitter(8 * time.Second); d < 4*time.Second || d >= 8*time.Second {
			t.Fatalf("8 s become %s", d)
		}
	}
}

// TestBrokerChangesRetryAFailingDevice: neither the events that a failing device's attempts cause nor anything else
// shortens its wait, except a change from the broker, a bit later.
func TestBrokerChangesRetryAFailingDevice(t *testing.T) {
	t.Parallel()
	s := exactly()
	s.Checked("c2", start)
	for range 8 {
		s.Failed("c2", start, false)
	}
	if r := s.Take(start, heal("c2"), false, nil); len(r.Devices) > 0 || !s.Next(start).Equal(start.Add(30*time.Second)) {
		t.Errorf("an event of the kernel has a failing device tried: %v, next in %s", r, s.Next(start).Sub(start))
	}
	for what, news := range map[string]Work{"device": work("c2"), "peer": peers("c2", "n1")} {
		s := exactly()
		s.Checked("c2", start)
		for range 8 {
			s.Failed("c2", start, false)
		}
		if r := s.Take(start, news, false, nil); len(r.Devices) > 0 || len(r.Peers) > 0 {
			t.Errorf("%s: a failing device is tried without a pause: %v", what, r)
		}
		if got := s.Next(start).Sub(start); got != HealGap {
			t.Errorf("%s: news wait %s", what, got)
		}
		if r := s.Take(start.Add(HealGap), NewWork(), false, nil); len(r.Devices)+len(r.Peers) != 1 {
			t.Errorf("%s: news are not tried after %s: %v", what, HealGap, r)
		}
		if s.Deferred() {
			t.Errorf("%s: what was taken waits", what)
		}
	}
}

// TestWhatIsDueOfAHealthyDevice: for a device that works, changes from the broker are due immediately, and events of
// the kernel unless the device was just set or checked. If the whole device is set, none of its peers is due.
func TestWhatIsDueOfAHealthyDevice(t *testing.T) {
	t.Parallel()
	s := exactly()
	s.Report("c2", 10, true)
	s.Checked("c2", start)
	news := work("c3")
	news.Peers["c2"] = map[string]bool{"n1": true}
	news.Peers["c3"] = map[string]bool{"n1": true}
	if r := s.Take(start, news, false, nil); !slices.Equal(r.Devices, []string{"c3"}) || len(r.Peers) != 1 ||
		!r.Peers["c2"]["n1"] {
		t.Errorf("%v", r)
	}
	if r := s.Take(start, heal("c2"), false, nil); len(r.Devices) > 0 {
		t.Errorf("an event that can be our own doing has the device set at once: %v", r)
	}
	if got := s.Next(start).Sub(start); got != HealGap {
		t.Errorf("the event waits %s", got)
	}
	if r := s.Take(start.Add(HealGap), NewWork(), false, nil); !slices.Equal(r.Devices, []string{"c2"}) {
		t.Errorf("the event is lost: %v", r)
	}
}

// TestChecks: a device that is set is checked every 300 ms, and nothing else; one that fails is not checked; a full
// check covers everything.
func TestChecks(t *testing.T) {
	t.Parallel()
	s := exactly()
	for _, cluster := range []string{"c2", "c3"} {
		s.Report(cluster, 10, true)
		s.Checked(cluster, start)
	}
	s.Report("c4", 0, false) // known, and not set yet
	if got := s.Next(start).Sub(start); got != minCheck {
		t.Errorf("the next check is in %s", got)
	}
	s.Failed("c3", start, false)
	if r := s.Take(start.Add(minCheck), NewWork(), false, nil); !slices.Equal(r.Checks, []string{"c2"}) ||
		len(r.Devices) > 0 {
		t.Errorf("%v", r)
	}
	s.Failed("c3", start, true)
	if r := s.Take(start.Add(minCheck), NewWork(), false, nil); !slices.Equal(r.Checks, []string{"c2", "c3"}) {
		t.Errorf("a device that works but for routes is not checked: %v", r)
	}
	if r := s.Take(start, NewWork(), true, []string{"c2", "c9"}); !slices.Equal(r.Devices, []string{"c2", "c3", "c9"}) {
		t.Errorf("a full check has %v; want the desired devices, and those that fail", r.Devices)
	}
	s.Forget("c2")
	s.Forget("c3")
	if next := s.Next(start); !next.IsZero() {
		t.Errorf("nothing is left, and something is due at %s", next)
	}
}

// Another writer does not increase the rate of checks.
func TestContestPausesChecks(t *testing.T) {
	t.Parallel()
	s := exactly()
	s.Report("c2", 10, true)
	s.Checked("c2", start)
	for range heals.Free + 3 {
		s.Healed("c2", start)
	}
	if got := s.Next(start).Sub(start); got != 4*time.Second {
		t.Errorf("the next check is in %s; want 4 s", got)
	}
	s.Take(start, heal("c2"), false, nil)
	if got := s.Next(start).Sub(start); got != 4*time.Second {
		t.Errorf("an event has it checked in %s; want 4 s", got)
	}
	if s.Contest("c2", start) == nil {
		t.Error("it is not reported")
	}
}
