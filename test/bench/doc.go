// Package bench measures the path of a change from one cluster to another as in production: the exporter's journal and
// session, protobuf, gzip, TLS 1.3 and gRPC over loopback, the broker's replica and admission. The apiservers at both
// ends are missing, and cost nothing; benchmarks of sets have real ones, with the whole exporter and broker.
//
// It has tests and benchmarks only, and nothing imports it; `make bench` runs them.
package bench
