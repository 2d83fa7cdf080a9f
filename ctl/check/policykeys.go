package check

import (
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

// PolicyKeys describes whether admission policies judge by what the broker's file says.
type PolicyKeys struct {
	// Err is why it is unknown, and Differ how they differ.
	Err, Differ error
}

// judgePolicyKeys judges the keys of the ConfigMap semaphore-subnets.
func judgePolicyKeys(k PolicyKeys) show.Finding {
	f := show.Finding{Subject: "ConfigMap semaphore-subnets"}
	switch {
	case k.Differ != nil:
		f.Code, f.Side, f.Evidence = finding.PolicyKeysDiffer, "here", k.Differ.Error()
		f.Fix = "write the same subnets into both: docs/overlays.md"
	case k.Err != nil:
		f.Code, f.Side, f.Evidence = finding.PolicyKeysUnreadable, "here", k.Err.Error()
		f.Fix = "give --kubeconfig of somebody who may list ConfigMaps"
	default:
		f.Code, f.Evidence = finding.PolicyKeysAgree, "admission policies know the subnets of the broker's file"
	}
	return f
}
