package check

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/preflight"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

// Calico describes how a cluster's Calico treats the pod subnets of remotes.
type Calico struct {
	Err     error
	Remotes []preflight.Remote
	Pools   []fleet.Pool
	// PoolResource is kubectl's name of the pools.
	PoolResource string
	IPAM         fleet.IPAM
}

// judgeCalico judges whether Calico leaves remote pods' IPs alone, and whether its IPAM ties each pod IP to the pod's
// node.
func judgeCalico(c Calico) []show.Finding {
	switch {
	case apierrors.IsForbidden(c.Err):
		return []show.Finding{show.Found(finding.CalicoNotRead, "", "Calico's pools and IPAM", "", "%v", c.Err)}
	case c.Err != nil:
		return []show.Finding{show.Found(finding.CalicoUnreadable, "here", "Calico's pools and IPAM",
			"give --kubeconfig of a user who may read ippools and ipamconfigs", "%v", c.Err)}
	}
	var all []show.Finding
	for _, r := range c.Remotes {
		all = append(all, preflight.JudgePools(c.Pools, c.PoolResource, "", r)...)
	}
	if len(all) == 0 && len(c.Remotes) > 0 {
		all = append(all, show.Found(finding.PoolsHarmless, "", "IPPools", "",
			"none of %d gives out or announces IPs of remote pods", len(c.Pools)))
	}
	switch {
	case c.IPAM.Blocks && c.IPAM.Strict:
		all = append(all, show.Found(finding.AffinityStrict, "", "Calico's IPAM", "",
			"nodes take IPs of their own blocks only"))
	case c.IPAM.Blocks:
		all = append(all, show.Found(finding.AffinityNotStrict, "here", "Calico's IPAM", c.IPAM.BeStrict(""),
			"strictAffinity is not set: a node whose blocks are full takes single IPs of another node's block, and "+
				"pods with these reach no remote cluster, nor are they reached"))
	}
	return all
}
