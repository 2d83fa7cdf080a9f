package check

import "fmt"

// Policies are how Calico's policies select sets of remotes, as it was found.
type Policies struct {
	// Err is why it is not known; Forbidden says that it is for want of rights.
	Err       error
	Forbidden bool
	// Total is how many there are, Open the rules that let in a set of any remote, a sentence each.
	Total int
	Open  []string
}

// JudgePolicies judges whether the policies leave it to a remote whom they let in.
func JudgePolicies(p Policies) []Finding {
	const subject = "Calico's policies"
	switch {
	case p.Forbidden:
		return []Finding{{Code: "policies-not-read", Level: OK, Subject: subject,
			Evidence: "not looked at: " + p.Err.Error() + "; --kubeconfig of somebody who may read them has them judged"}}
	case p.Err != nil:
		return []Finding{{Code: "policies-unreadable", Level: Warning, Subject: subject, Side: "here", Evidence: p.Err.Error(),
			Fix: "give --kubeconfig of somebody who may read Calico's policies and sets"}}
	case len(p.Open) == 0:
		return []Finding{{Code: "policies", Level: OK, Subject: subject, Evidence: fmt.Sprintf("none of %d lets in a set whichever remote it is of", p.Total)}}
	}
	var all []Finding
	for _, open := range p.Open {
		all = append(all, Finding{Code: "policy-without-cluster", Level: Warning, Subject: subject, Side: "here", Evidence: open,
			Fix: "name the cluster, and the namespace, in the selector: docs/policies.md"})
	}
	return all
}
