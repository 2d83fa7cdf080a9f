package check

import (
	"fmt"

	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
)

// PolicyKeys describes whether admission policies judge by the broker's file.
type PolicyKeys struct {
	// Err is why it is unknown, and Differ how they differ.
	Err, Differ error
	// Remotes are the keys of remotes; none unless Services may have endpoints under their own names.
	Remotes []RemoteKey
}

// RemoteKey is the key for the pod subnets of a remote in a ConfigMap.
type RemoteKey struct {
	Namespace, ConfigMap, Remote, Key string
	// Have is empty for no key. Want are the subnets of the RemoteCluster.
	Have, Want string
}

func judgePolicyKeys(k PolicyKeys) []show.Finding {
	const subject = "ConfigMap semaphore-subnets"
	f := show.Found(finding.PolicyKeysAgree, "", subject, "", "admission policies know the subnets of the broker's file")
	switch {
	case k.Differ != nil:
		f = show.Found(finding.PolicyKeysDiffer, "here", subject, "write the same subnets into both: docs/overlays.md", "%v",
			k.Differ)
	case k.Err != nil:
		f = show.Found(finding.PolicyKeysUnreadable, "here", subject, "give --kubeconfig of a user who may list ConfigMaps",
			"%v", k.Err)
	}
	all := []show.Finding{f}
	for _, r := range k.Remotes {
		if !config.SameList(r.Have, r.Want) {
			all = append(all, judgeRemoteKey(r))
		}
	}
	return all
}

func judgeRemoteKey(r RemoteKey) show.Finding {
	is := fmt.Sprintf("%s is %q, and RemoteCluster %s has %q: own names of Services lead to endpoints of %[3]s "+
		"only as far as both agree", r.Key, r.Have, r.Remote, r.Want)
	if r.Have == "" {
		is = fmt.Sprintf("it has no key %s, so own names of Services lead to no endpoint of %s", r.Key, r.Remote)
	}
	return show.Found(finding.RemotePodSubnetsDiffer, "here", "ConfigMap "+r.ConfigMap,
		fmt.Sprintf("kubectl -n %s patch configmap %s --type merge -p '{\"data\":{%q:%q}}'; semaphorectl link does it, "+
			"and in an overlay it is a literal: docs/overlays.md", r.Namespace, r.ConfigMap, r.Key, r.Want), "%s", is)
}
