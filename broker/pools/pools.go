// Package pools says which Calico IPPools the own cluster needs: a disabled one for each pod subnet of a remote. It depends on the configuration alone.
package pools

import (
	"net/netip"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Desired wants one disabled IPPool for each remote pod subnet: Calico then takes what goes there for
// pod traffic, so it neither masquerades it nor drops it as spoofed. It depends on the configuration alone.
//
// Calico's BIRD learns the agents' routes to a remote from the kernel, and exports them to every BGP peer if they lie in
// any pool that does not say disableBGPExport, disabled or not (projectcalico/calico, confd/etc/calico/confd/templates,
// calico_export_to_bgp_peers). A node whose agent comes later then has another node's route in the place of its own
// (submariner-io/submariner, pull request 3156).
func Desired(remotes []config.Remote) apply.Desired[*calicov3.IPPool] {
	pools := map[string]*calicov3.IPPool{}
	var names []string
	for _, r := range remotes {
		for _, subnet := range r.PodPrefixes {
			pool := pool(r.Name, subnet)
			pools[pool.Name] = pool
			names = append(names, pool.Name)
		}
	}
	return apply.Desired[*calicov3.IPPool]{
		Names: func() []string { return names },
		Want: func(name, _ string) apply.Answer[*calicov3.IPPool] {
			if pool, ok := pools[name]; ok {
				return apply.Answer[*calicov3.IPPool]{Verdict: apply.Present, Object: pool}
			}
			return apply.Answer[*calicov3.IPPool]{Verdict: apply.Absent}
		},
	}
}

func pool(cluster string, subnet netip.Prefix) *calicov3.IPPool {
	block := 26 // Calico's defaults; a block cannot be wider than its pool
	if subnet.Addr().Is6() {
		block = 122
	}
	return &calicov3.IPPool{
		ObjectMeta: metav1.ObjectMeta{
			Name: naming.Pool(cluster, subnet.String()),
			Labels: map[string]string{
				naming.LabelManagedBy:     naming.ManagedByBroker,
				naming.LabelSourceCluster: cluster,
			},
		},
		Spec: calicov3.IPPoolSpec{
			CIDR:             subnet.String(),
			Disabled:         true, // no pod of ours gets an IP of it
			DisableBGPExport: true,
			NATOutgoing:      false,
			IPIPMode:         calicov3.IPIPModeNever,
			VXLANMode:        calicov3.VXLANModeNever,
			NodeSelector:     "all()",
			BlockSize:        max(block, subnet.Bits()),
		},
	}
}
