package agent

import (
	devices "github.com/kube-semaphore/semaphore/agent/device"
	"github.com/kube-semaphore/semaphore/agent/hostnet"
	"github.com/kube-semaphore/semaphore/agent/lookup"
	"github.com/kube-semaphore/semaphore/agent/peers"
	"github.com/kube-semaphore/semaphore/agent/routing"
	"github.com/kube-semaphore/semaphore/agent/sysctl"
	"github.com/kube-semaphore/semaphore/agent/wireguard"
)

// kernel is what the agent reads and changes of the node: the node itself, or a scripted one in tests.
type kernel interface {
	devices.Kernel
	hostnet.Kernel
	peers.Kernel
	lookup.Kernel
}

// node is the kernel of this node.
type node struct{ *wireguard.Host }

// DeleteStray implements device.Kernel.
func (node) DeleteStray(r routing.Route) error { return r.Delete() }

// StrictFilters implements device.Kernel.
func (node) StrictFilters(links []string) ([]string, error) { return sysctl.StrictFilters(links) }

// Settings implements hostnet.Kernel.
func (node) Settings(networks []sysctl.Network) (sysctl.Values, error) { return sysctl.Read(networks) }
