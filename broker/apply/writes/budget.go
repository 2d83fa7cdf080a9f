package writes

import (
	"encoding/json"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/kube-semaphore/semaphore/internal/config"
)

// Budgets limit how many bytes are written to the apiserver for each remote: etcd keeps every version of an object
// until it compacts, and a remote decides how often its objects change.
type Budgets struct {
	mu      sync.Mutex
	remotes map[string]*rate.Limiter
}

// NewBudgets returns the budgets of the configured remotes. The own cluster has none.
func NewBudgets(remotes []config.Remote) *Budgets {
	b := &Budgets{}
	b.Follow(remotes)
	return b
}

// Follow replaces the configured remotes. The spending of a remaining remote still counts.
func (b *Budgets) Follow(remotes []config.Remote) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.remotes
	b.remotes = map[string]*rate.Limiter{}
	for _, r := range remotes {
		n := r.Limits.KibibytesPerSecond << 10
		if n <= 0 {
			continue
		}
		limit := was[r.Name]
		if limit == nil {
			limit = rate.NewLimiter(rate.Limit(n), config.ByteBurst*n)
		}
		limit.SetLimit(rate.Limit(n))
		limit.SetBurst(config.ByteBurst * n)
		b.remotes[r.Name] = limit
	}
}

// reserve takes the bytes of an object from a remote's budget, and returns the wait before they may be written. For a
// cluster without a budget it returns 0 without measuring the object.
func (b *Budgets) reserve(cluster string, object any, now time.Time) time.Duration {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	limit, ok := b.remotes[cluster]
	b.mu.Unlock()
	if !ok {
		return 0
	}
	return limit.ReserveN(now, min(sizeOf(object), limit.Burst())).DelayFrom(now)
}

// sizeOf estimates the bytes of an object in etcd.
func sizeOf(object any) int {
	if o, ok := object.(interface{ Size() int }); ok {
		return o.Size()
	}
	data, err := json.Marshal(object)
	if err != nil {
		return 0 // the write will return the error
	}
	return len(data)
}
