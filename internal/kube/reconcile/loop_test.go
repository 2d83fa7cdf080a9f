package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/goleak"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

func receive[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(time.Minute):
		t.Fatalf("%s: nothing came", what)
		panic("unreachable")
	}
}

// TestCoalescing: a key that is enqueued several times while it waits, or is being reconciled, is reconciled once more,
// with the latest state.
func TestCoalescing(t *testing.T) {
	var wanted, runs atomic.Int64
	saw := make(chan int64, 1000)
	begin := make(chan struct{})
	l := New("test", func(ctx context.Context, key string) error {
		value := wanted.Load()
		runs.Add(1)
		saw <- value
		<-begin
		return nil
	}, Options{Log: quiet})
	wanted.Store(1)
	for range 100 {
		l.Enqueue("a")
	}
	testkit.Run(t, l.Run)
	if got := receive(t, saw, "first run"); got != 1 {
		t.Errorf("saw %d", got)
	}
	for i := range int64(100) { // while it is being reconciled
		wanted.Store(2 + i)
		l.Enqueue("a")
	}
	close(begin)
	if got := receive(t, saw, "second run"); got != 101 {
		t.Errorf("saw %d; want the newest", got)
	}
	time.Sleep(50 * time.Millisecond)
	if n := runs.Load(); n != 2 {
		t.Errorf("%d runs; want 2", n)
	}
}

// TestWorkers: two workers never reconcile one key at the same time, and no change is missed: in the end, every key was
// reconciled after its last change.
func TestWorkers(t *testing.T) {
	const workers, keys, changes = 8, 20, 20_000
	var versions, reconciled [keys]atomic.Int64
	var busy [keys]atomic.Bool
	var parallel, most, failures atomic.Int64
	l := New("test", func(ctx context.Context, key int) error {
		if busy[key].Swap(true) {
			t.Errorf("key %d is reconciled by two workers", key)
		}
		defer busy[key].Store(false)
		if now := parallel.Add(1); now > most.Load() {
			most.Store(now)
		}
		defer parallel.Add(-1)
		version := versions[key].Load()
		if rand.IntN(4) == 0 {
			time.Sleep(time.Millisecond)
		}
		if rand.IntN(50) == 0 {
			failures.Add(1)
			return errors.New("now and then")
		}
		reconciled[key].Store(version)
		return nil
	}, Options{Workers: workers, Log: quiet})
	testkit.Run(t, l.Run)
	var changing sync.WaitGroup
	for range 4 {
		changing.Go(func() {
			for range changes / 4 {
				key := rand.IntN(keys)
				versions[key].Add(1)
				l.Enqueue(key)
				if rand.IntN(100) == 0 {
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	changing.Wait()
	behind := func() (n int) {
		for key := range keys {
			if reconciled[key].Load() != versions[key].Load() {
				n++
			}
		}
		return n
	}
	testkit.Eventually(t, time.Minute, "all keys are reconciled", testkit.State(func() (bool, string) {
		n, failing := behind(), len(l.Problems())
		return n == 0 && failing == 0, fmt.Sprintf("%d keys are behind, %d failing", n, failing)
	}))
	if most.Load() < 2 {
		t.Error("workers never worked side by side: the test tests less than it says")
	}
	t.Logf("at most %d at a time, %d failures", most.Load(), failures.Load())
}

// TestBackoffOfEachKeyAlone: a key that fails is retried after 50 ms, 100 ms, 200 ms…, ± 50 %. Other keys do not wait
// for it, an enqueue does not shorten its wait, and a success resets it.
func TestBackoffOfEachKeyAlone(t *testing.T) { synctest.Test(t, testBackoffOfEachKeyAlone) }

func testBackoffOfEachKeyAlone(t *testing.T) {
	type attempt struct {
		key string
		at  time.Time
	}
	attempts := make(chan attempt, 1000)
	var broken atomic.Bool
	broken.Store(true)
	l := New("test", func(ctx context.Context, key string) error {
		attempts <- attempt{key, time.Now()}
		if key == "bad" && broken.Load() {
			return errors.New("refused")
		}
		return nil
	}, Options{Log: quiet})
	testkit.Run(t, l.Run)
	tries := func(n int) (gaps []time.Duration) {
		t.Helper()
		last := receive(t, attempts, "first attempt").at
		for range n {
			next := receive(t, attempts, "retry").at
			gaps = append(gaps, next.Sub(last))
			last = next
		}
		return gaps
	}
	check := func(gaps []time.Duration) {
		t.Helper()
		for i, gap := range gaps {
			least := minBackoff << i / 2
			most := minBackoff << i * 3 / 2
			if gap < least || gap > most {
				t.Errorf("retry %d after %s; want %s to %s", i+1, gap, least, most)
			}
		}
	}
	l.Enqueue("bad")
	check(tries(4)) // 50+100+200+400 ms

	// The next retry of bad is at least 400 ms away.
	start := time.Now()
	for i := range 20 {
		l.Enqueue(fmt.Sprint("good", i))
		if a := receive(t, attempts, "good key"); a.key != fmt.Sprint("good", i) {
			t.Fatalf("attempt of %s", a.key)
		}
	}
	if d := time.Since(start); d > 0 {
		t.Errorf("20 good keys waited for %s beside a failing one", d)
	}

	// An enqueue joins the wait, and causes no attempt.
	last := time.Now()
	for range 20 {
		l.Enqueue("bad")
		l.EnqueueAfter("bad", time.Millisecond)
	}
	broken.Store(false)
	if a := receive(t, attempts, "the retry that was planned"); a.key != "bad" || a.at.Sub(last) < 50*time.Millisecond {
		t.Errorf("attempt of %s after %s", a.key, a.at.Sub(last))
	}
	select {
	case a := <-attempts:
		t.Errorf("another attempt of %s", a.key)
	case <-time.After(100 * time.Millisecond):
	}
	broken.Store(true)
	l.Enqueue("bad")
	check(tries(2))
}

// A change of a key that waits for a cause of its own is tried within a second, because it may remove the cause, and
// not more often.
func TestChangesRetryAWaitingKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var attempts []time.Time
		var takes atomic.Int64
		made := func() []time.Time {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(attempts)
		}
		l := New("test", func(context.Context, string) error {
			mu.Lock()
			attempts = append(attempts, time.Now())
			mu.Unlock()
			time.Sleep(time.Duration(takes.Load()))
			return errors.New("refused")
		}, Options{Log: quiet})
		testkit.Run(t, l.Run)
		l.Enqueue("bad")
		time.Sleep(5 * time.Minute) // each wait is 15 s and more
		synctest.Wait()
		before := len(made())
		begin := time.Now()
		for range 1000 {
			l.News("bad")
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		if n := len(made()) - before; n < 9 || n > 11 {
			t.Errorf("%d attempts in ten seconds in which it changes all the time, want one each second", n)
		}
		if d := made()[before].Sub(begin); d > newsAfter {
			t.Errorf("the first after %s", d)
		}

		// An attempt that a change finds under way may have begun with the old state.
		const took = 5 * time.Second
		takes.Store(int64(took))
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		for n := len(made()); len(made()) == n; synctest.Wait() {
			time.Sleep(time.Second)
		}
		l.News("bad")
		under := len(made())
		time.Sleep(took + newsAfter)
		synctest.Wait()
		if n := len(made()) - under; n != 1 {
			t.Errorf("%d attempts within a second after one in which it changed, want 1", n)
		}
	})
}

// Keys that each fail for a cause of their own are retried three times a second in total, however many there are. When
// one of them succeeds, the others with the same cause are retried immediately. Each attempt fails for a new reason, so
// each could be logged: of an owner there are 20 messages at once, and then one a second, and those of another owner
// are in addition.
func TestManyThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys, other = 5000, 5000
		var attempts, done atomic.Int64
		var broken atomic.Bool
		broken.Store(true)
		warnings := new(testkit.Warnings)
		l := New("test", func(_ context.Context, key int) error {
			n := attempts.Add(1)
			if broken.Load() {
				return fmt.Errorf("%d is refused the %dth time", key, n)
			}
			done.Add(1)
			return nil
		}, Options{Workers: 4, Log: slog.New(warnings), Cause: func(error) Cause { return Cause{Name: "policy"} }}).
			By(func(key int) string { return map[bool]string{true: "c3", false: "c2"}[key == other] })
		testkit.Run(t, l.Run)
		for key := range keys {
			l.Enqueue(key)
		}
		time.Sleep(10 * time.Minute)
		before, logged := attempts.Load(), warnings.Count()
		if most := int64(logBurst + 600*logRate + 1); logged > most || logged < most-10 {
			t.Errorf("%d messages in ten minutes, want %d", logged, most)
		}
		time.Sleep(10 * time.Minute)
		if n := attempts.Load() - before; n > 600*retryRate*3/2 || n < 600*retryRate/2 {
			t.Errorf("%d attempts in ten minutes, want %d", n, 600*retryRate)
		}
		logged = warnings.Count()
		l.Enqueue(other)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if n := warnings.Count() - logged; n < 1 || n > 2 {
			t.Errorf("%d messages when a key of another owner fails, want its own", n)
		}
		broken.Store(false)
		time.Sleep(2 * time.Second)
		if done.Load() < keys {
			t.Errorf("%d of %d are done two seconds after the cause has ended", done.Load(), keys)
		}
	})
}

// flaky is a dependency of all keys that is down at times.
type flaky struct {
	down     atomic.Bool
	attempts atomic.Int64
	took     time.Duration
	done     sync.Map // when, by key
}

func (f *flaky) reconcile(_ context.Context, key int) error {
	f.attempts.Add(1)
	time.Sleep(f.took)
	if f.down.Load() {
		return errors.New("down")
	}
	f.done.Store(key, time.Now())
	return nil
}

func (f *flaky) last() (n int, last time.Time) {
	f.done.Range(func(_, at any) bool {
		n++
		if at := at.(time.Time); at.After(last) {
			last = at
		}
		return true
	})
	return n, last
}

// While a shared dependency is down, one key probes it. When it is back, the last of a thousand keys is reconciled
// within two seconds, however long it was down and however often keys changed meanwhile.
func TestSharedCause(t *testing.T) {
	for _, all := range []bool{false, true} {
		for _, outage := range []time.Duration{5 * time.Second, 20 * time.Second, time.Hour} {
			synctest.Test(t, func(t *testing.T) {
				const keys = 1000
				f := &flaky{took: 5 * time.Millisecond}
				f.down.Store(true)
				l := New("test", f.reconcile,
					Options{Workers: 16, Log: quiet, Cause: func(error) Cause { return Cause{Name: "down", Shared: true, All: all} }})
				testkit.Run(t, l.Run)
				begin := time.Now()
				for time.Since(begin) < outage {
					for key := range keys {
						l.News(key)
					}
					time.Sleep(max(outage/100, 100*time.Millisecond))
				}
				most := int64(outage/(maxProbe*3/4)) + 10
				if !all {
					most += keys // each fails once by itself
				}
				if n := f.attempts.Load(); n > most+16 {
					t.Errorf("all %v, %s: %d attempts, want %d at most", all, outage, n, most+16)
				}
				back := time.Now()
				f.down.Store(false)
				time.Sleep(10 * time.Second)
				n, last := f.last()
				if n != keys || last.Sub(back) > 2*time.Second {
					t.Errorf("all %v, %s: %d of %d are done, the last one %s after the recovery", all, outage, n, keys, last.Sub(back))
				}
				l.mu.Lock()
				defer l.mu.Unlock()
				if len(l.gates)+len(l.items) != 0 {
					t.Errorf("left over: %v %v", l.gates, l.items)
				}
			})
		}
	}
}

// A key that has nothing to do, or fails for another cause, shows nothing about the gate's cause, so the next one
// probes immediately.
func TestProbesWithoutAnOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open, idle atomic.Bool
		var mu sync.Mutex
		done := map[int]bool{}
		l := New("test", func(_ context.Context, key int) error {
			switch {
			case !open.Load():
				return errors.New("quota")
			case idle.Load() && key < 50:
				return ErrIdle
			case key == 50:
				return errors.New("invalid")
			}
			mu.Lock()
			defer mu.Unlock()
			done[key] = true
			return nil
		}, Options{Workers: 4, Log: quiet,
			Cause: func(err error) Cause { return Cause{Name: err.Error(), Shared: err.Error() == "quota"} }})
		testkit.Run(t, l.Run)
		for key := range 60 {
			l.Enqueue(key)
		}
		time.Sleep(time.Minute)
		idle.Store(true)
		open.Store(true)
		time.Sleep(2 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		if p := l.Problems(); len(done) != 9 || len(p) != 1 || p[0].Err.Error() != "invalid" {
			t.Errorf("done %v, problems %v", done, p)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.gates) != 0 || len(l.items) != 1 { // the one that fails
			t.Errorf("left over: %v %v", l.gates, l.items)
		}
	})
}

// Others do not wait for those that share a cause, unless all would fail for it.
func TestGateHoldsOnlyThoseThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var good atomic.Int64
		l := New("test", func(_ context.Context, key int) error {
			if key < 100 {
				return errors.New("quota")
			}
			good.Add(1)
			return nil
		}, Options{Workers: 2, Log: quiet, Cause: func(error) Cause { return Cause{Name: "quota", Shared: true} }})
		testkit.Run(t, l.Run)
		for key := range 200 {
			l.Enqueue(key)
		}
		time.Sleep(time.Second)
		if good.Load() != 100 {
			t.Errorf("%d of 100 good keys are done", good.Load())
		}
	})
}

func TestBackoffIsBounded(t *testing.T) {
	different := map[time.Duration]bool{}
	for range 100 {
		d := jitter(maxBackoff)
		if d < maxBackoff/2 || d > maxBackoff*3/2 {
			t.Errorf("backoff of %s", d)
		}
		different[d] = true
	}
	if len(different) < 90 {
		t.Errorf("%d different backoffs of 100: no jitter", len(different))
	}
}

func TestProblems(t *testing.T) {
	var mu sync.Mutex
	failing := map[string]error{"b": errors.New("b is wrong"), "a": errors.New("a is wrong")}
	l := New("test", func(ctx context.Context, key string) error {
		mu.Lock()
		defer mu.Unlock()
		return failing[key]
	}, Options{Workers: 2, Log: quiet})
	if got := l.Problems(); len(got) != 0 {
		t.Errorf("before anything: %v", got)
	}
	before := time.Now()
	testkit.Run(t, l.Run)
	for _, key := range []string{"b", "a", "c"} {
		l.Enqueue(key)
	}
	until := func(what string, done func([]Problem) bool) []Problem {
		t.Helper()
		var p []Problem
		testkit.Eventually(t, time.Minute, what, testkit.State(func() (bool, string) {
			p = l.Problems()
			return done(p), fmt.Sprint(p)
		}))
		return p
	}
	first := until("two problems", func(p []Problem) bool { return len(p) == 2 })
	if first[0].Key != "a" || first[0].Err.Error() != "a is wrong" || first[1].Key != "b" {
		t.Errorf("problems %v", first)
	}
	if first[0].Since.Before(before) || first[0].Attempts < 1 {
		t.Errorf("problem %+v", first[0])
	}
	mu.Lock()
	failing["a"] = errors.New("a is wrong in another way")
	mu.Unlock()
	later := until("more attempts", func(p []Problem) bool { return len(p) == 2 && p[0].Attempts > first[0].Attempts+1 })
	if !later[0].Since.Equal(first[0].Since) || later[0].Err.Error() != "a is wrong in another way" {
		t.Errorf("%+v; want the newest error since the first one", later[0])
	}
	mu.Lock()
	delete(failing, "a")
	mu.Unlock()
	if p := until("one problem", func(p []Problem) bool { return len(p) == 1 }); p[0].Key != "b" {
		t.Errorf("problems %v", p)
	}
}

// A name that is enqueued before Run waits for it, and the earliest time counts.
func TestEnqueueBeforeRun(t *testing.T) {
	type done struct {
		key string
		at  time.Time
	}
	keys := make(chan done, 10)
	l := New("test", func(ctx context.Context, key string) error {
		keys <- done{key, time.Now()}
		return nil
	}, Options{Log: quiet})
	start := time.Now()
	l.EnqueueAfter("later", time.Hour)
	l.EnqueueAfter("later", 200*time.Millisecond)
	l.EnqueueAfter("later", time.Hour)
	l.EnqueueAfter("now", time.Hour)
	l.Enqueue("now")
	testkit.Run(t, l.Run)
	if d := receive(t, keys, "now"); d.key != "now" {
		t.Errorf("first %s", d.key)
	}
	if d := receive(t, keys, "later"); d.key != "later" || d.at.Sub(start) < 200*time.Millisecond {
		t.Errorf("%s after %s", d.key, d.at.Sub(start))
	}
	l.EnqueueAfter("after", 50*time.Millisecond)
	if d := receive(t, keys, "after"); d.key != "after" {
		t.Errorf("%s", d.key)
	}
}

// The end of the context reaches the worker that works, nothing that waits is begun any more,
// and nothing continues: TestMain looks for goroutines.
func TestShutdown(t *testing.T) {
	var runs atomic.Int64
	begun := make(chan struct{}, 1)
	l := New("test", func(ctx context.Context, key int) error {
		runs.Add(1)
		begun <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}, Options{Metrics: NewMetrics("test", prometheus.NewRegistry()), Log: quiet})
	for i := range 1000 {
		l.Enqueue(i)
	}
	l.EnqueueAfter(1000, time.Hour)
	stop := testkit.Run(t, l.Run)
	receive(t, begun, "first key")
	stop()
	if n := runs.Load(); n != 1 {
		t.Errorf("%d keys were begun; want only the one before the end", n)
	}
	if p := l.Problems(); len(p) != 0 {
		t.Errorf("the end is no problem of a key: %v", p)
	}
	l.Enqueue(7)
	l.EnqueueAfter(8, time.Millisecond)
	time.Sleep(20 * time.Millisecond)
	if n := runs.Load(); n != 1 {
		t.Error("a key was reconciled after the end")
	}
}

func TestRunAfterTheEnd(t *testing.T) {
	l := New("test", func(ctx context.Context, key int) error {
		t.Error("reconciled")
		return nil
	}, Options{Log: quiet})
	l.Enqueue(1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
}

// New starts nothing: a loop that is never run leaves no goroutine.
func TestNewStartsNothing(t *testing.T) {
	l := New("test", func(ctx context.Context, key int) error { return nil },
		Options{Metrics: NewMetrics("test", prometheus.NewRegistry())})
	l.Enqueue(1)
	if err := goleak.Find(); err != nil {
		t.Error(err)
	}
}

func TestFailuresAreLogged(t *testing.T) {
	lines := make(chan string, 100)
	l := New("service", func(ctx context.Context, key string) error { return errors.New("forbidden") },
		Options{Log: slog.New(slog.NewTextHandler(writer(lines), nil))})
	stop := testkit.Run(t, l.Run)
	l.Enqueue("shop/echo")
	line := receive(t, lines, "log")
	stop()
	for _, want := range []string{"level=WARN", "loop=service", "key=shop/echo", "attempt=1", "error=forbidden"} {
		if !strings.Contains(line, want) {
			t.Errorf("%q does not have %s", line, want)
		}
	}
}

type writer chan<- string

func (w writer) Write(b []byte) (int, error) {
	w <- string(b)
	return len(b), nil
}

// The loops of one part share their metrics, distinguished by name.
func TestMetricsScraped(t *testing.T) {
	reg := prometheus.NewRegistry()
	metrics := NewMetrics("semaphore_broker", reg)
	server := httptest.NewServer(promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	defer server.Close()
	hold, begun := make(chan struct{}), make(chan struct{}, 1)
	var failed atomic.Bool
	service := New("service", func(ctx context.Context, key string) error {
		if !failed.Swap(true) {
			return errors.New("once")
		}
		return nil
	}, Options{Metrics: metrics, Log: quiet})
	set := New("set", func(ctx context.Context, key string) error {
		begun <- struct{}{}
		<-hold
		return nil
	}, Options{Metrics: metrics, Log: quiet})
	testkit.Run(t, service.Run)
	testkit.Run(t, set.Run)
	service.Enqueue("a")
	for _, key := range []string{"a", "b", "c"} {
		set.Enqueue(key)
	}
	receive(t, begun, "set loop")
	want := []string{
		`semaphore_broker_queue_adds_total{queue="service"} 2`,
		`semaphore_broker_queue_retries_total{queue="service"} 1`,
		`semaphore_broker_queue_latency_duration_seconds_count{queue="service"} 2`,
		`semaphore_broker_queue_work_duration_seconds_count{queue="service"} 2`,
		`semaphore_broker_queue_depth{queue="service"} 0`,
		`semaphore_broker_queue_adds_total{queue="set"} 3`,
		`semaphore_broker_queue_depth{queue="set"} 2`,
		`semaphore_broker_queue_work_duration_seconds_count{queue="set"} 0`,
	}
	var text string
	missing := func() (out []string) {
		text = scrape(t, server.URL)
		for _, line := range want {
			if !strings.Contains(text, line+"\n") {
				out = append(out, line)
			}
		}
		for _, gauge := range []string{"unfinished_work_seconds", "longest_running_processor_seconds"} {
			if line := "semaphore_broker_queue_" + gauge + `{queue="set"} `; !strings.Contains(text, line) ||
				strings.Contains(text, line+"0\n") {
				out = append(out, line+"above 0")
			}
		}
		return out
	}
	testkit.Eventually(t, time.Minute, "all metrics are scraped", testkit.State(func() (bool, string) {
		m := missing()
		return len(m) == 0, fmt.Sprintf("missing %q in:\n%s", m, text)
	}))
	for range 2 { // the other two keys
		hold <- struct{}{}
		receive(t, begun, "next key")
	}
	close(hold)
}

func scrape(t *testing.T, url string) string {
	t.Helper()
	resp := testkit.Value(http.Get(url))(t)
	defer resp.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v", resp.Status, err)
	}
	return string(body)
}
