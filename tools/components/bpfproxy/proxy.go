// Package proxy stands for the Service proxy of Felix's eBPF dataplane, which is written for the proxy packages of
// Kubernetes 1.29. A testbed has kube-proxy and Felix's iptables dataplane. With bpfEnabled, this Felix panics with the
// error of StartKubeProxy.
package proxy

import (
	"errors"
	"net"
	"time"

	"github.com/projectcalico/calico/felix/bpf/bpfmap"
	"github.com/projectcalico/calico/felix/bpf/routes"
	"k8s.io/client-go/kubernetes"
)

// An Option is one of a proxy, and has no effect.
type Option struct{}

func WithMinSyncPeriod(time.Duration) Option { return Option{} }
func WithDSREnabled() Option                 { return Option{} }
func WithTopologyNodeZone(string) Option     { return Option{} }
func WithExcludedCIDRs([]string) Option      { return Option{} }
func WithIPFamily(int) Option                { return Option{} }

// KubeProxy has the methods that Felix connects.
type KubeProxy struct{}

// StartKubeProxy returns an error.
func StartKubeProxy(kubernetes.Interface, string, *bpfmap.IPMaps, ...Option) (*KubeProxy, error) {
	return nil, errors.New("the testbed's Felix is built without the proxy of the eBPF dataplane: set bpfEnabled: false")
}

func (*KubeProxy) OnHostIPsUpdate([]net.IP)                                 {}
func (*KubeProxy) OnRouteUpdate(routes.KeyInterface, routes.ValueInterface) {}
func (*KubeProxy) OnRouteDelete(routes.KeyInterface)                        {}
func (*KubeProxy) ConntrackScanStart()                                      {}
func (*KubeProxy) ConntrackScanEnd()                                        {}
func (*KubeProxy) ConntrackFrontendHasBackend(net.IP, uint16, net.IP, uint16, uint8) bool {
	return false
}
