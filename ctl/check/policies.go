package check

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

// Policies describes how Calico's policies select sets of remotes.
type Policies struct {
	Err error
	// Total is the number of policies, Open are the rules that admit a set of any remote, a sentence each.
	Total int
	Open  []string
}

// judgePolicies judges whether the policies leave it to a remote which of its pods they admit.
func judgePolicies(p Policies) []show.Finding {
	const subject = "Calico's policies"
	switch {
	case apierrors.IsForbidden(p.Err):
		return []show.Finding{show.Found(finding.PoliciesNotRead, "", subject, "",
			"%v; --kubeconfig of a user who may read them has them judged", p.Err)}
	case p.Err != nil:
		return []show.Finding{show.Found(finding.PoliciesUnreadable, "here", subject,
			"give --kubeconfig of a user who may read Calico's policies and sets", "%v", p.Err)}
	case len(p.Open) == 0:
		return []show.Finding{show.Found(finding.PoliciesNameClusters, "", subject, "",
			"all of %d policies that select sets name a cluster", p.Total)}
	}
	var all []show.Finding
	for _, open := range p.Open {
		all = append(all, show.Found(finding.PolicyWithoutCluster, "here", subject,
			"name the cluster, and the namespace, in the selector: docs/policies.md", "%s", open))
	}
	return all
}
