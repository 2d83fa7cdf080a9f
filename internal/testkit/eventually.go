package testkit

import (
	"errors"
	"testing"
	"time"
)

// minPause and maxPause are the shortest and the longest wait between two checks of Eventually.
const minPause, maxPause = 2 * time.Millisecond, 20 * time.Millisecond

// Eventually calls check until it returns nil, and returns how long that took. Where it does not within the given time,
// it ends the test with what was waited for and the last error. check is called once at least, and once more after the
// time.
//
// The pause between two checks grows with the time that has passed, so that the returned time is at most 1 % or 2 ms
// late, and is as long as the check itself took, so that a slow check does not keep the machine busy; it is 20 ms at
// most.
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

// True makes a check of a condition.
func True(ok func() bool) func() error {
	return func() error {
		if ok() {
			return nil
		}
		return errNotYet
	}
}

// State makes a check of a condition that says what it saw.
func State(f func() (ok bool, seen string)) func() error {
	return func() error {
		ok, seen := f()
		if ok {
			return nil
		}
		return errors.New("last seen: " + seen)
	}
}
