package peering

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/lru"
)

const (
	// A source may fail failureBurst times in a row to be admitted, and then once every failureInterval. Successful
	// admissions do not count.
	failureBurst    = 20
	failureInterval = 5 * time.Second
	// maxSources bounds the sources that are remembered; the least recently used is forgotten first.
	maxSources = 4096
)

// failures limits how often each source may fail to be admitted, as each attempt costs the apiserver a review.
type failures struct {
	now func() time.Time

	mu      sync.Mutex
	sources *lru.Cache // source → *attempts
}

// attempts of one source. A running attempt may fail, and counts as failed until it ends.
type attempts struct {
	limiter *rate.Limiter
	running int
	ended   chan struct{} // closed and replaced when an attempt ends
}

func newFailures(now func() time.Time) *failures {
	return &failures{now: now, sources: lru.New(maxSources)}
}

// acquire waits until a source has no more running attempts than may fail, or returns an error if the source has
// failed too often. The caller must call end.
func (f *failures) acquire(ctx context.Context, source string) (end func(failed bool), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		var a *attempts
		if of, ok := f.sources.Get(source); ok {
			a = of.(*attempts)
		} else {
			a = &attempts{limiter: rate.NewLimiter(rate.Every(failureInterval), failureBurst), ended: make(chan struct{})}
			f.sources.Add(source, a)
		}
		left := a.limiter.TokensAt(f.now())
		if left < 1 {
			return nil, status.Errorf(codes.ResourceExhausted,
				"%s was refused too often: the broker reviews one attempt every %s", source, failureInterval)
		}
		if left-float64(a.running) >= 1 {
			a.running++
			return func(failed bool) { f.release(a, failed) }, nil
		}
		ended := a.ended
		f.mu.Unlock()
		select {
		case <-ended:
		case <-ctx.Done():
		}
		f.mu.Lock()
		if ctx.Err() != nil {
			return nil, status.Error(codes.Unavailable, "too many tokens are to be reviewed now")
		}
	}
}

func (f *failures) release(a *attempts, failed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a.running--
	if failed {
		a.limiter.AllowN(f.now(), 1)
	}
	close(a.ended)
	a.ended = make(chan struct{})
}
