//go:build linux

// Package container runs one real process in namespaces and a root filesystem of its own: what runc does for a
// kubelet, as far as a testbed needs it. No image, no cgroup, no seccomp.
//
// It owns processes and what their mount namespaces hold. Nothing of that is visible outside, so nothing of it is left
// when the process ends: the root filesystem is a tmpfs that lives in the process's own mount namespace. It knows
// nothing of Kubernetes; of this module it imports testbed/netns only.
//
// Mounts, privileges and the change of root are made by a child that executes the current binary again under the name
// semaphore-testbed-init. This package's init function recognises that name and never returns, so any program or test
// binary that imports the package can start containers. Keep the package's imports few: they are initialised in every
// such child.
package container
