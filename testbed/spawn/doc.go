//go:build linux

// Package spawn starts processes in namespaces and root filesystems of their own, and in the namespaces of processes
// that run. A testbed's control planes and nodes are such processes; containers are containerd's and runc's.
//
// It owns processes and what their mount namespaces hold. Nothing of that is visible outside, so nothing of it is left
// when the process ends: the root filesystem is a tmpfs that lives in the process's own mount namespace. A process ends
// when the one that started it does, whatever ends that. The package knows nothing of Kubernetes; of this module it
// imports testbed/netns only.
//
// Mounts and the change of root are made by a child that executes the current binary again under the name
// semaphore-testbed-init. This package's init function recognises that name and never returns, so any program or test
// binary that imports the package can start processes. Keep the package's imports few: they are initialised in every
// such child.
package spawn
