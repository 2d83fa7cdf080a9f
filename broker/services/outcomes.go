package services

import semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"

// Outcomes returns the unexpected outcomes of a cluster's services, to be sent to it. failing maps Services of this
// cluster to the reason why they cannot be written.
func (e *Engine) Outcomes(cluster string, failing map[string]string) []*semaphorev1.Outcome {
	e.mu.RLock()
	defer e.mu.RUnlock()
	var out []*semaphorev1.Outcome
	for _, o := range e.plan.Outcomes(cluster, failing) {
		m := &semaphorev1.Outcome{
			Key: &semaphorev1.ObjectKey{Kind: kindService, Namespace: o.Namespace, Name: o.Name}, Code: string(o.Code),
			Reason: o.Reason, Conflict: o.Conflict.Message,
		}
		for _, reason := range o.Conflict.Reasons {
			m.Conflicts = append(m.Conflicts, string(reason))
		}
		out = append(out, m)
	}
	return out
}
