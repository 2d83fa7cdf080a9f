package nodes

import (
	"net/netip"
	"slices"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// This file defines the Calico IPPools that the own cluster needs: a disabled one for each pod subnet of a remote. They
// depend on the configuration alone.

// Pools wants one disabled IPPool for each remote pod subnet. Calico then treats traffic to the subnet as pod traffic:
// it neither masquerades it nor drops it as spoofed. config returns the configuration with the remotes in effect; who
// changes it must wake the loop that writes.
//
// Calico's BIRD learns the agents' routes to a remote from the kernel. If a route lies in any pool without
// disableBGPExport, disabled or not, BIRD exports it to every BGP peer (projectcalico/calico,
// confd/etc/calico/confd/templates, calico_export_to_bgp_peers). A node whose agent starts later would then have the
// route of another node in place of its own (submariner-io/submariner, pull request 3156).
func Pools(config func() *config.Broker) writes.Desired[*calicov3.IPPool] {
	subnets := func(yield func(cluster string, subnet netip.Prefix) bool) {
		for _, r := range config().Remotes {
			for _, subnet := range r.PodPrefixes {
				if !yield(r.Name, subnet) {
					return
				}
			}
		}
	}
	return writes.Desired[*calicov3.IPPool]{
		Names: func() (names []string) {
			for cluster, subnet := range subnets {
				names = append(names, naming.Pool(cluster, subnet.String()))
			}
			slices.Sort(names)
			return names
		},
		Want: func(name, _ string) writes.Answer[*calicov3.IPPool] {
			for cluster, subnet := range subnets {
				if naming.Pool(cluster, subnet.String()) == name {
					return writes.Answer[*calicov3.IPPool]{Verdict: writes.Present, Object: pool(cluster, subnet)}
				}
			}
			return writes.Answer[*calicov3.IPPool]{Verdict: writes.Absent}
		},
	}
}

func pool(cluster string, subnet netip.Prefix) *calicov3.IPPool {
	block := 26 // Calico's defaults; a block cannot be larger than its pool
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
			Disabled:         true, // no own pod gets an IP from it
			DisableBGPExport: true,
			NATOutgoing:      false,
			IPIPMode:         calicov3.IPIPModeNever,
			VXLANMode:        calicov3.VXLANModeNever,
			NodeSelector:     "all()",
			BlockSize:        max(block, subnet.Bits()),
		},
	}
}
