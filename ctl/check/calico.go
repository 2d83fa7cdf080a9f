package check

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

// Calico describes how a cluster's Calico treats the pod subnets of remotes.
type Calico struct {
	// Err is why it is unknown; Forbidden is set if rights are missing.
	Err       error
	Forbidden bool
	// Remotes are the pod subnets by cluster, in order.
	Remotes []RemoteSubnet
	Pools   []fleet.Pool
	// PoolResource is kubectl's name of the pools.
	PoolResource string
	IPAM         fleet.IPAM
}

// RemoteSubnet is a pod subnet of a remote.
type RemoteSubnet struct {
	Cluster string
	Subnet  netip.Prefix
}

// judgeCalico judges whether Calico leaves remote pods' IPs alone, and whether its IPAM ties each pod IP to the pod's
// node.
func judgeCalico(c Calico) []show.Finding {
	switch {
	case c.Forbidden:
		return []show.Finding{{Code: finding.CalicoNotRead, Subject: "Calico's pools and IPAM", Evidence: c.Err.Error()}}
	case c.Err != nil:
		return []show.Finding{{Code: finding.CalicoUnreadable, Subject: "Calico's pools and IPAM", Side: "here",
			Evidence: c.Err.Error(),
			Fix:      "give --kubeconfig of somebody who may read ippools and ipamconfigs"}}
	}
	var all []show.Finding
	masquerades := false
	for _, p := range c.Pools {
		masquerades = masquerades || !p.Disabled && p.NATOutgoing
		for _, r := range c.Remotes {
			if p.CIDR.Overlaps(r.Subnet) {
				all = append(all, judgePool(p, r, c.PoolResource)...)
			}
		}
	}
	for _, r := range c.Remotes {
		covered := false
		for _, p := range c.Pools {
			covered = covered || p.CIDR.Bits() <= r.Subnet.Bits() && p.CIDR.Contains(r.Subnet.Addr())
		}
		if !covered && masquerades {
			all = append(all, show.Finding{Code: finding.PoolMissing, Subject: fmt.Sprintf("pods of %s, %s", r.Cluster,
				r.Subnet),
				Side:     "here",
				Evidence: "no IPPool has them, so that Calico replaces the pods' IPs by those of their nodes (SNAT)",
				Fix: "set manageIPPools: true in the broker's configuration, with the component features/ippools, or make a " +
					"disabled pool as docs/install.md has it"})
		}
	}
	if len(all) == 0 && len(c.Remotes) > 0 {
		all = append(all, show.Finding{Code: finding.Pools, Subject: "IPPools",
			Evidence: fmt.Sprintf("none of %d gives out or announces IPs of remote pods", len(c.Pools))})
	}
	switch {
	case c.IPAM.Blocks && c.IPAM.Strict:
		all = append(all, show.Finding{Code: finding.StrictAffinity, Subject: "Calico's IPAM",
			Evidence: "nodes take IPs of their own blocks only"})
	case c.IPAM.Blocks:
		all = append(all, show.Finding{Code: finding.AffinityNotStrict, Subject: "Calico's IPAM", Side: "here",
			Fix: c.IPAM.BeStrict(""),
			Evidence: "strictAffinity is not set: a node whose blocks are full takes single IPs of another node's block, and " +
				"pods with these reach no remote cluster, nor are they reached"})
	}
	return all
}

// judgePool judges a pool that overlaps a remote's subnet.
func judgePool(p fleet.Pool, r RemoteSubnet, resource string) []show.Finding {
	subject := fmt.Sprintf("IPPool %s, %s", p.Name, p.CIDR)
	patch := func(fields ...string) string {
		return fmt.Sprintf(`kubectl patch %s %s --type merge -p '{"spec":{%s}}'`, resource, p.Name, strings.Join(fields,
			","))
	}
	const disabled, unexported = `"disabled":true`, `"disableBGPExport":true`
	switch {
	case !p.Disabled && p.CIDR.Bits() < r.Subnet.Bits():
		return []show.Finding{{Code: finding.PoolEnabled, Subject: subject, Side: "here",
			Evidence: fmt.Sprintf("Calico gives pods of this cluster IPs of it, and %s of it are those of pods of %s",
				r.Subnet,
				r.Cluster),
			Fix: "put pools in its place that do not overlap the subnet, or give the clusters other subnets: two pods " +
				"must not have one IP"}}
	case !p.Disabled:
		return []show.Finding{{Code: finding.PoolEnabled, Subject: subject, Side: "here",
			Evidence: fmt.Sprintf("Calico gives pods of this cluster IPs of it, and they are those of pods of %s (%s)",
				r.Cluster, r.Subnet), Fix: patch(disabled, unexported)}}
	case !p.DisableBGPExport:
		return []show.Finding{{Code: finding.PoolExported, Subject: subject, Side: "here",
			Evidence: fmt.Sprintf("it has no disableBGPExport, so that where Calico speaks BGP each node announces its route "+
				"to the pods of %s, and others follow that in place of their own", r.Cluster),
			Fix: patch(unexported)}}
	}
	return nil
}
