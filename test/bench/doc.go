// Package bench measures the path of a change from one cluster to another as in production: the whole exporter and
// broker, with real apiservers at both ends.
//
// It has benchmarks only, and nothing imports it; `make bench` runs them.
package bench
