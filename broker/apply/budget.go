package apply

import (
	"encoding/json"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"golang.org/x/time/rate"

	"github.com/kube-semaphore/semaphore/internal/config"
)

// Budgets bound how many bytes are written to the apiserver for each remote: etcd keeps every version of an object until it compacts, and
// a remote decides how often its objects change.
type Budgets struct{ remotes map[string]*rate.Limiter }

// NewBudgets makes those of the configured remotes. The own cluster has none.
func NewBudgets(remotes []config.Remote) *Budgets {
	b := &Budgets{remotes: map[string]*rate.Limiter{}}
	for _, r := range remotes {
		if n := r.Limits.KibibytesPerSecond << 10; n > 0 {
			b.remotes[r.Name] = rate.NewLimiter(rate.Limit(n), config.ByteBurst*n)
		}
	}
	return b
}

// reserve takes the bytes of an object from a remote's budget, and returns after how long they may be written. A cluster without a budget
// does not wait, and the object is not measured.
func (b *Budgets) reserve(cluster string, object any, now time.Time) time.Duration {
	if b == nil {
		return 0
	}
	limit, ok := b.remotes[cluster]
	if !ok {
		return 0
	}
	return limit.ReserveN(now, min(sizeOf(object), limit.Burst())).DelayFrom(now)
}

// afford is for how long a write of an object is to wait yet. The first time it takes the bytes from the budget of the remote that the
// write is for; the write is due then, whatever else changes until it is made.
func (o *Objects[T]) afford(name, cluster string, object T, now time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	due, reserved := o.due[name]
	if !reserved {
		wait := o.options.Budgets.reserve(cluster, object, now)
		if wait > 0 {
			o.due[name] = now.Add(wait)
			o.options.Metrics.delayed.WithLabelValues(cluster, o.kind.name).Inc()
		}
		return wait
	}
	if wait := due.Sub(now); wait > 0 {
		return wait
	}
	delete(o.due, name)
	return 0
}

// spared forgets that a write is due, as there is nothing to write any more.
func (o *Objects[T]) spared(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.due, name)
}

// sizeOf is about how many bytes an object has in etcd.
func sizeOf(object any) int {
	if o, ok := object.(interface{ Size() int }); ok {
		return o.Size()
	}
	data, err := json.Marshal(object)
	if err != nil {
		return 0 // the write will tell
	}
	return len(data)
}

// leaves says whether an endpoint that is used by a slice is not, or less, in another: traffic to it fails until that is written.
func leaves(have, want *discoveryv1.EndpointSlice) bool {
	ready := func(e *discoveryv1.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }
	stays := map[string]bool{}
	for i := range want.Endpoints {
		if e := &want.Endpoints[i]; len(e.Addresses) > 0 && ready(e) {
			stays[e.Addresses[0]] = true
		}
	}
	for i := range have.Endpoints {
		if e := &have.Endpoints[i]; len(e.Addresses) > 0 && ready(e) && !stays[e.Addresses[0]] {
			return true
		}
	}
	return false
}
