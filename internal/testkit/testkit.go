// Package testkit has what the tests of many packages need: wait for a condition, end a test with an error, skip it for
// what the machine lacks, capture a log, run or start a program, read a metric.
//
// In go a testing.TB and what a test observes; out comes a value, or the end of the test with the reason. It imports
// nothing of this module, so that the test of any package can use it. What needs packages of this module, or a machine,
// has a package of its own: trust (certificates of clusters), loopback (ports that nobody else takes), kubetest (an
// apiserver), metricsdoc (docs/metrics.md against the code). No product imports any of them; docs/imports_test.go holds
// that.
package testkit

import "testing"

// Must ends the test where there is an error.
func Must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
