// Package testkit has what the tests of many packages need: it waits for a condition, ends a test with an error, skips
// it if the machine lacks something, captures a log, runs or starts a program, and reads a metric.
//
// Its input is a testing.TB and what a test observes; it returns a value, or ends the test with the reason. Helpers
// that need packages of this module, or a machine, are in packages of their own: trust (certificates of clusters),
// loopback (ports that no other process takes), kubetest (an apiserver), metricsdoc (docs/metrics.md against the code).
// No product package imports any of them; docs/imports_test.go enforces that.
package testkit

import "testing"

// Must ends the test if there is an error.
func Must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// NoError fails the test if there is an error, and lets it continue.
func NoError(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Error(err)
	}
}

// Value returns the value of a call that must not fail, and ends the test if it did: x := testkit.Value(f())(t).
func Value[T any](value T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		Must(tb, err)
		return value
	}
}
