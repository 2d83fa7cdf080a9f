// Package testbed makes real Kubernetes clusters on one machine, and removes them without a trace.
//
// Each cluster has its own etcd, kube-apiserver, kube-controller-manager, kube-scheduler and CoreDNS, and nodes with
// containerd, kubelet, kube-proxy and Calico (its CNI plugin, IPAM, Felix, and BIRD in a mesh). A node is a set of
// namespaces with processes in them; all nodes meet on one fabric that has no link to the machine's own network.
// docs/testbed.md draws the picture.
//
// Because everything lives in namespaces, addresses are the same in every testbed and several run side by side. All
// that belongs to testbed ID has names that begin with sb-ID (network namespaces, control groups) or lies below
// Directory/ID (files).
//
// Up makes a testbed and Down removes it; Sweep removes what a killed process left. Files are cut by what they make:
// plan.go (names and addresses), machine.go (what the machine must have), fabric.go, access.go, controlplane.go,
// node.go and nodefiles.go, calico.go, dns.go, images.go; process.go keeps programs running; state.go and sweep.go are
// about life and death; cluster.go, pods.go and use.go are what tests use.
//
// It knows nothing of semaphore but that there is an image of it among those that nodes have.
package testbed
