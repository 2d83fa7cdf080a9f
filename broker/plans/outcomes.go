package plans

import (
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Outcomes tells a cluster what became of its services that it would not expect. failing says of Services of ours why they cannot be
// written.
func (p *Plans) Outcomes(cluster string, failing map[string]string) []*semaphorev1.Outcome {
	if !p.features.Has(config.Services) {
		return nil
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	var out []*semaphorev1.Outcome
	for _, o := range p.mirror.Outcomes(cluster, failing) {
		out = append(out, &semaphorev1.Outcome{
			Key: &semaphorev1.ObjectKey{Kind: semaphorev1.Kind_KIND_SERVICE, Namespace: o.Namespace, Name: o.Name}, Code: o.Code, Reason: o.Reason,
		})
	}
	return out
}
