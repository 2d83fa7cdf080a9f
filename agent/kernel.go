package agent

import (
	"github.com/kube-semaphore/semaphore/agent/routing"
	"github.com/kube-semaphore/semaphore/agent/sysctl"
	"github.com/kube-semaphore/semaphore/agent/wireguard"
)

// node is the Kernel of the node that the agent runs on.
type node struct{ *wireguard.Host }

// DeleteStray implements device.Kernel.
func (node) DeleteStray(r routing.Route) error { return r.Delete() }

// StrictFilters implements device.Kernel.
func (node) StrictFilters(links []string) ([]string, error) { return sysctl.StrictFilters(links) }

// Settings implements hostnet.Kernel.
func (node) Settings(networks []sysctl.Network) (sysctl.Values, error) { return sysctl.Read(networks) }
