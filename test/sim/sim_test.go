package sim

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// report is a failure as a person reads it.
func report(f *Failure) string {
	return fmt.Sprintf("%v\n%s\nagain, with all of the trace: SEED=%d go test ./test/sim -run TestSeed$ -v", f,
		strings.Join(f.Trace, "\n"), f.Seed)
}

// TestSeed plays the seed of the environment's SEED with all of its trace.
func TestSeed(t *testing.T) {
	if os.Getenv("SEED") == "" {
		t.Skip("plays one seed again: SEED=n")
	}
	out := Run(variable(t, "SEED", 0), func(line string) { t.Log(line) })
	if out.Failure != nil {
		t.Fatal(report(out.Failure))
	}
	t.Logf("%d steps, trace %x", out.Steps, out.Trace)
}

// variable is the number in a variable of the environment.
func variable(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// seeds is how many to play, and from which on: SEEDS and FROM of the environment, else few for a quick run.
func seeds(t *testing.T) (from, n uint64) {
	n = 2_000
	if testing.Short() {
		n = 300
	}
	return variable(t, "FROM", 1), variable(t, "SEEDS", n)
}

// play plays n seeds on all processors. It continues after a failure to report a few, but not after one of the
// invariant UNTIL. text is a failure as a person reads it.
func play(t *testing.T, from, n uint64, one func(seed uint64) *Failure, text func(f *Failure, seed uint64) string) {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // a fifth less time
	var next, done atomic.Uint64
	var mu sync.Mutex
	failures, found := 0, false
	until := os.Getenv("UNTIL")
	start, told := time.Now(), time.Now()
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				i := next.Add(1) - 1
				mu.Lock()
				if failures >= 5 || found {
					i = n
				}
				mu.Unlock()
				if i >= n {
					return
				}
				f := one(from + i)
				done := done.Add(1)
				mu.Lock()
				if f != nil {
					failures++
					found = found || f.Invariant == until
					t.Error(text(f, from+i))
				}
				if time.Since(told) > 10*time.Second {
					told = time.Now()
					fmt.Printf("%d of %d seeds, %.0f a second\n", done, n, float64(done)/time.Since(start).Seconds())
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("%d seeds from %d on, %.0f a second", done.Load(), from, float64(done.Load())/time.Since(start).Seconds())
}

// TestSeeds plays many seeds.
func TestSeeds(t *testing.T) {
	from, n := seeds(t)
	play(t, from, n, func(seed uint64) *Failure { return Run(seed, nil).Failure },
		func(f *Failure, _ uint64) string { return report(f) })
}

// TestSuccession plays seeds of brokers that follow one another while nodes are withdrawn.
func TestSuccession(t *testing.T) {
	from, n := uint64(0), uint64(500)
	if testing.Short() {
		n = 100
	}
	if os.Getenv("SEEDS") != "" {
		from, n = seeds(t)
	}
	play(t, from, n, Succession, func(f *Failure, seed uint64) string {
		return fmt.Sprintf("%v\nagain: Succession(%d)", f, seed)
	})
}

// A seed is one run: what it finds can be looked at again.
func TestASeedIsAlwaysTheSameRun(t *testing.T) {
	n := uint64(200)
	if testing.Short() {
		n = 40
	}
	for seed := range n {
		quiet := func(string) {}
		if a, b := Run(seed, quiet), Run(seed, quiet); a.Trace != b.Trace || a.Steps != b.Steps {
			t.Errorf("seed %d: %d steps with trace %x, and then %d with %x: %s", seed, a.Steps, a.Trace, b.Steps, b.Trace,
				difference(seed))
		}
	}
}

// difference is where two runs of a seed part.
func difference(seed uint64) string {
	for range 20 {
		var a, b []string
		Run(seed, func(line string) { a = append(a, line) })
		Run(seed, func(line string) { b = append(b, line) })
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				return fmt.Sprintf("line %d is %q, and then %q", i, a[i], b[i])
			}
		}
	}
	return "not to be seen a second time"
}
