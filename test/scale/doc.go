// Package scale measures what a hundred clusters, thousands of nodes and a hundred thousand endpoints cost: the
// programs as processes with the settings of their manifests, against real apiservers. Remotes that speak through the
// exporter's own publisher, and agents that only attach, stand in for the rest of the mesh.
//
// It has benchmarks only, and nothing imports it; `make scale` runs them, and `make soak` the one that takes hours.
package scale
