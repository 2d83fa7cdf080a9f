package agent

import (
	devices "github.com/kube-semaphore/semaphore/agent/device"
	"github.com/kube-semaphore/semaphore/agent/guard"
	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/paths"
)

// nodeKernel is what the agent reads and changes of the node: the node itself, or a scripted one in tests.
type nodeKernel interface {
	devices.Kernel
	guard.Kernel
	paths.Kernel
	paths.Router
}

type node struct{ *kernel.Host }

// DeleteStray implements device.Kernel.
func (node) DeleteStray(r kernel.Route) error { return r.Delete() }

// StrictFilters implements device.Kernel.
func (node) StrictFilters(links []string) ([]string, error) { return kernel.StrictFilters(links) }

// Settings implements guard.Kernel.
func (node) Settings(networks []kernel.RoutedDevice) (kernel.Settings, error) {
	return kernel.ReadSettings(networks)
}
