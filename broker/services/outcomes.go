package services

import semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"

// Outcomes tells a cluster what became of its services that it would not expect. failing says of Services of ours why they cannot be
// written.
func (e *Engine) Outcomes(cluster string, failing map[string]string) []*semaphorev1.Outcome {
	e.mu.RLock()
	defer e.mu.RUnlock()
	var out []*semaphorev1.Outcome
	for _, o := range e.plan.Outcomes(cluster, failing) {
		out = append(out, &semaphorev1.Outcome{
			Key: &semaphorev1.ObjectKey{Kind: kindService, Namespace: o.Namespace, Name: o.Name}, Code: o.Code, Reason: o.Reason,
		})
	}
	return out
}
