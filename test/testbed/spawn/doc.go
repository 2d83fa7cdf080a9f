//go:build linux

// Package spawn starts processes in new namespaces and root filesystems, and in the namespaces of running processes.
// The control planes and nodes of a testbed are such processes; containers are run by containerd and runc.
//
// The package owns the processes and the contents of their mount namespaces. The root filesystem is a tmpfs in the
// process's own mount namespace, so nothing is visible outside, and nothing is left when the process ends. A process
// ends when the one that started it ends, for whatever reason. The package does not depend on Kubernetes; of this
// module it imports only test/testbed/netns.
//
// A child makes the mounts and changes the root. It executes the current binary again under the name
// semaphore-testbed-init. The init function of this package recognizes that name and never returns, so any program or
// test binary that imports the package can start processes. Keep the package's imports few: every such child
// initializes them.
package spawn
