// Package sim runs exporters, networks, brokers, apiservers and agents in one goroutine, from one random seed and with
// simulated time. It checks invariants after each step, and the final state after all faults healed. A seed always
// gives the same run, so that a failure can be repeated by its number.
//
// Real: exporter/catalog, exporter/publish.Session, broker/replica with broker/admission, broker/mesh, policy, and
// services with mirror, broker/apply/writes, broker/peering.State and its streams,
// agent/stream, and every message in its encoded form. Simulated: Kubernetes' watches of the source clusters
// (each kind at its own pace, with gaps and relists), connections (order within a stream and none between streams,
// stalls, cuts that one end notices before the other, half-open ends), the apiserver of each destination (versions,
// preconditions, writes that fail, or are executed and seem to fail), the loops of broker/apply and the kernel of a
// node. README.md lists which property is checked where.
//
// Nothing outside this directory imports the package.
package sim
