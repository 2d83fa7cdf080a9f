// Package sim plays exporters, networks, brokers, apiservers and agents in one goroutine, by one random
// seed and in a time of its own, and checks after each step that what must never happen has not, and in the
// end that what was to come about has. A seed that fails is played again by its number, step for step.
//
// What is real here: exporter/catalog, exporter/publish.Session, broker/replica with broker/admission, broker/tunnels,
// services and networksets with broker/mesh, mirror and policy, broker/peering.State and its streams, agent/desired,
// and every message in its encoded form. What is simulated: Kubernetes' watches of the source clusters (each kind at
// its own pace, with gaps and relists), connections (order within a stream and none between streams, stalls, cuts that
// one end notices before the other, half-open ends), the apiserver of each destination (versions, preconditions, writes
// that fail, or are carried out and seem to fail), the loops of broker/apply and the kernel of a node. README.md lists
// which property is checked where.
//
// Nothing outside this directory imports the package.
package sim
