// Package bench measures the way of a change from one cluster to another as it is in production: the exporter's journal
// and session, protobuf, gzip, TLS 1.3 and gRPC over loopback, the broker's replica and admission. What costs nothing
// there, because it is not there, is the apiserver at either end; benchmarks of sets have real ones, with the whole
// exporter and broker.
//
// It has tests and benchmarks only, and nothing imports it; `make bench` runs them.
package bench
