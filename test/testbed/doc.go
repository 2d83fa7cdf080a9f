// Package testbed runs real Kubernetes clusters on one machine and removes them without a trace.
//
// Each cluster has its own etcd, kube-apiserver, kube-controller-manager, kube-scheduler and CoreDNS, and nodes with
// containerd, kubelet, kube-proxy and Calico (CNI plugin, IPAM, Felix, and a full BGP mesh with BIRD). A node is a set
// of Linux namespaces with processes in them. All nodes are connected to one bridge, the fabric, which has no link to
// the machine's network. docs/testbed.md has a picture.
//
// Everything runs in namespaces, so every testbed has the same addresses, and several run side by side. The network
// namespaces and control groups of testbed ID have names that begin with sb-ID; its files are below Directory/ID.
//
// Up creates a testbed, Down removes it, and Sweep removes what a killed process left. The files: plan.go (names and
// addresses), machine.go (requirements of the machine), fabric.go, access.go, controlplane.go, node.go and
// nodefiles.go, calico.go, dns.go, images.go; process.go supervises programs; state.go and sweep.go track and clean up
// testbeds; cluster.go, pods.go and use.go are the API for tests.
//
// The package does not depend on semaphore. It only loads the image of semaphore into the nodes.
package testbed
