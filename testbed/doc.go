// Package testbed makes real Kubernetes clusters on one machine, and removes them without a trace.
//
// Each cluster has its own etcd, kube-apiserver, kube-controller-manager and CoreDNS, and nodes with kube-proxy and
// Calico's Felix. A node is a network namespace with a root filesystem of its own, a pod is a network namespace wired as
// Calico wires it; all nodes meet on one fabric that has no link to the machine's own network. What stands in for
// kubelets and the scheduler is testbed/kubelet; static routes stand in for BIRD. docs/testbed.md draws the picture.
//
// Because everything lives in namespaces, addresses are the same in every testbed and several run side by side. All
// that belongs to testbed ID bears names that begin with sb-ID- (namespaces) or lies below Directory/ID (files).
//
// Up makes a testbed and Down removes it; Sweep removes what a killed process left. Files are cut by what they make:
// plan.go (names and addresses), fabric.go, access.go, controlplane.go, calico.go, node.go, dns.go; process.go keeps
// programs running; state.go and sweep.go are about life and death; cluster.go is what tests use.
//
// It knows nothing of semaphore but the names of its programs, which pods with the image "semaphore" can run.
package testbed
