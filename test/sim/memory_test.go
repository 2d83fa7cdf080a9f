package sim

import (
	"os"
	"strconv"
	"testing"
)

// TestASuccessionWithoutAChangeWritesNothing plays seeds of leaders that follow one another while nothing changes.
func TestASuccessionWithoutAChangeWritesNothing(t *testing.T) {
	from, n := uint64(1), uint64(200)
	if testing.Short() {
		n = 60
	}
	if os.Getenv("SEEDS") != "" {
		from, n = seeds(t)
	}
	if text := os.Getenv("SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("SEED: %v", err)
		}
		from, n = seed, 1
	}
	failures := 0
	for seed := from; seed < from+n; seed++ {
		if f := Memory(seed); f != nil {
			t.Errorf("%v\nagain: SEED=%d go test ./test/sim -run '%s$'", f, seed, t.Name())
			if failures++; failures >= 5 || f.Invariant == os.Getenv("UNTIL") {
				return
			}
		}
	}
}
