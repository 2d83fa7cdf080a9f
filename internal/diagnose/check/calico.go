package check

import (
	"fmt"
	"net/netip"
	"strings"
)

// Calico is how a cluster's Calico deals with the pod subnets of remotes, as it was found.
type Calico struct {
	// Err is why it is not known; Forbidden says that it is for want of rights.
	Err       error
	Forbidden bool
	// Remotes are the pod subnets by cluster, in order.
	Remotes []RemoteSubnet
	Pools   []Pool
	// PoolResource is what kubectl calls the pools.
	PoolResource string
	// Blocks says that Calico's IPAM has given blocks to nodes, Strict that nodes may take no IP of another's block. StrictFix
	// is the command that makes it so.
	Blocks, Strict bool
	StrictFix      string
}

// RemoteSubnet is one of a remote's pods.
type RemoteSubnet struct {
	Cluster string
	Subnet  netip.Prefix
}

// Pool is an IPPool of Calico's.
type Pool struct {
	Name                                    string
	CIDR                                    netip.Prefix
	Disabled, DisableBGPExport, NATOutgoing bool
}

// JudgeCalico judges whether Calico leaves what is remote pods' alone, and whether its IPAM says which node a pod is on.
func JudgeCalico(c Calico) []Finding {
	switch {
	case c.Forbidden:
		return []Finding{{Code: "calico-not-read", Level: OK, Subject: "Calico's pools and IPAM", Evidence: "not looked at: " + c.Err.Error()}}
	case c.Err != nil:
		return []Finding{{Code: "calico-unreadable", Level: Warning, Subject: "Calico's pools and IPAM", Side: "here", Evidence: c.Err.Error(),
			Fix: "give --kubeconfig of somebody who may read ippools and ipamconfigs"}}
	}
	var all []Finding
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
			all = append(all, Finding{Code: "pool-missing", Level: Warning, Subject: fmt.Sprintf("pods of %s, %s", r.Cluster, r.Subnet), Side: "here",
				Evidence: "no IPPool has them, so that Calico hides the pods' IPs behind those of their nodes",
				Fix:      "set manageIPPools: true in the broker's configuration, with the component features/ippools, or make a disabled pool as docs/install.md has it"})
		}
	}
	if len(all) == 0 && len(c.Remotes) > 0 {
		all = append(all, Finding{Code: "pools", Level: OK, Subject: "IPPools", Evidence: fmt.Sprintf("none of %d gives out or announces IPs of remote pods", len(c.Pools))})
	}
	switch {
	case c.Blocks && c.Strict:
		all = append(all, Finding{Code: "strict-affinity", Level: OK, Subject: "Calico's IPAM", Evidence: "nodes take IPs of their own blocks only"})
	case c.Blocks:
		all = append(all, Finding{Code: "affinity-not-strict", Level: Warning, Subject: "Calico's IPAM", Side: "here", Fix: c.StrictFix,
			Evidence: "strictAffinity is not set: a node whose blocks are full takes single IPs of another node's block, and pods with these reach no remote cluster, nor are they reached"})
	}
	return all
}

// judgePool judges a pool that overlaps a remote's subnet.
func judgePool(p Pool, r RemoteSubnet, resource string) []Finding {
	subject := fmt.Sprintf("IPPool %s, %s", p.Name, p.CIDR)
	patch := func(fields ...string) string {
		return fmt.Sprintf(`kubectl patch %s %s --type merge -p '{"spec":{%s}}'`, resource, p.Name, strings.Join(fields, ","))
	}
	const disabled, unexported = `"disabled":true`, `"disableBGPExport":true`
	switch {
	case !p.Disabled && p.CIDR.Bits() < r.Subnet.Bits():
		return []Finding{{Code: "pool-enabled", Level: Error, Subject: subject, Side: "here",
			Evidence: fmt.Sprintf("Calico gives pods of this cluster IPs of it, and %s of it are those of pods of %s", r.Subnet, r.Cluster),
			Fix:      "put pools in its place that do not overlap the subnet, or give the clusters other subnets: two pods must not have one IP"}}
	case !p.Disabled:
		return []Finding{{Code: "pool-enabled", Level: Error, Subject: subject, Side: "here",
			Evidence: fmt.Sprintf("Calico gives pods of this cluster IPs of it, and they are those of pods of %s (%s)", r.Cluster, r.Subnet), Fix: patch(disabled, unexported)}}
	case !p.DisableBGPExport:
		return []Finding{{Code: "pool-exported", Level: Warning, Subject: subject, Side: "here",
			Evidence: fmt.Sprintf("it has no disableBGPExport, so that where Calico speaks BGP each node announces its route to the pods of %s, and others follow that in place of their own", r.Cluster),
			Fix:      patch(unexported)}}
	}
	return nil
}
