//go:build linux

// Package kubelet does for the nodes of one testbed cluster what kubelets, a CNI plugin, a container runtime and the
// scheduler do in a real one, as far as the programs under test can see: it binds pods, wires them as Calico does, runs
// their containers as real processes, probes them, and writes their status. The nodes are network namespaces, the pods
// are too, and images are sets of binaries of the machine.
//
// Data flows one way: watches → queue of pod names → one worker a pod → machine and apiserver. A worker owns everything
// of its pod and is woken by whatever concerns it; nothing polls. Choices (which node, which address, which status, which
// environment) are functions; effects are in worker.go, network.go, containers.go and volumes.go.
//
// It talks to the apiserver of its cluster and imports, of this module, testbed/netns and testbed/container only.
//
// What it leaves out: cgroups and resource limits, image registries, device plugins, persistent and CSI volumes,
// sidecar init containers, ephemeral containers, postStart hooks, termination messages, in-place changes of containers,
// IPv6 pod addresses, the kubelet's own API (kubectl logs, exec and port-forward: see LogPath and Process.Exec instead),
// node heartbeats.
package kubelet
