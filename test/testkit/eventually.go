package testkit

import (
	"errors"
	"testing"
	"time"
)

// minPause and maxPause are the shortest and the longest wait between two checks of Eventually.
const minPause, maxPause = 2 * time.Millisecond, 20 * time.Millisecond

// Eventually calls check until it returns nil, and returns how long that took. If check does not succeed within the
// given time, Eventually ends the test with what and the last error. It calls check at least once, and once more after
// the time.
//
// The pause between two checks grows with the elapsed time, so that the result is at most 1 % or 2 ms too late. A pause
// is at least as long as the check itself, so that a slow check does not keep the machine busy. It is at most 20 ms.
func Eventually(tb testing.TB, within time.Duration, what string, check func() error) time.Duration {
	tb.Helper()
	for begin := time.Now(); ; {
		began := time.Now()
		err := check()
		passed := time.Since(begin)
		if err == nil {
			return passed
		}
		if passed > within {
			tb.Fatalf("%s: not within %s: %v", what, within, err)
		}
		time.Sleep(min(max(minPause, passed/100, time.Since(began)), maxPause))
	}
}

var errNotYet = errors.New("it is not so")

// True returns a check for a condition.
func True(ok func() bool) func() error {
	return func() error {
		if ok() {
			return nil
		}
		return errNotYet
	}
}

// State returns a check for a condition that also reports the observed state.
func State(f func() (ok bool, seen string)) func() error {
	return func() error {
		ok, seen := f()
		if ok {
			return nil
		}
		return errors.New("last seen: " + seen)
	}
}
