package services

import semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"

// Outcomes returns the unexpected outcomes of a cluster's services, to be sent to it. failing maps Services of this
// cluster to the reason why they cannot be written.
func (e *Engine) Outcomes(cluster string, failing map[string]string) []*semaphorev1.Outcome {
	e.mu.RLock()
	defer e.mu.RUnlock()
	all := e.plan.Outcomes(cluster, failing)
	if e.imported != nil {
		all = e.imported.Outcomes(cluster, all)
	}
	var out []*semaphorev1.Outcome
	for _, o := range all {
		out = append(out, &semaphorev1.Outcome{
			Key: &semaphorev1.ObjectKey{Kind: kindService, Namespace: o.Namespace, Name: o.Name}, Code: string(o.Code),
			Reason: o.Reason, Conflict: o.Conflict.Message, Conflicts: o.Conflict.Reasons,
		})
	}
	return out
}
