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
	// failureBurst is how often a source may fail to be admitted in short order, and failureEvery how soon
	// it may once more after that. Whoever is admitted costs it nothing.
	failureBurst = 20
	failureEvery = 5 * time.Second
	// maxSources bounds what is remembered of sources; the longest unseen is forgotten first.
	maxSources = 4096
)

// failures limits how often each source may fail to be admitted: each attempt costs the apiserver a review.
type failures struct {
	now func() time.Time

	mu      sync.Mutex
	sources *lru.Cache // source → *attempts
}

// attempts are those of one source. An attempt that is under way may fail, and counts as if it had.
type attempts struct {
	limiter *rate.Limiter
	running int
	ended   chan struct{} // closed and replaced when one ends
}

func newFailures(now func() time.Time) *failures {
	return &failures{now: now, sources: lru.New(maxSources)}
}

// begin lets an attempt of a source begin, as soon as no more are under way than may fail; or refuses it where the source has
// failed too often. Whoever was let begin calls end.
func (f *failures) begin(ctx context.Context, source string) (end func(failed bool), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		var a *attempts
		if of, ok := f.sources.Get(source); ok {
			a = of.(*attempts)
		} else {
			a = &attempts{limiter: rate.NewLimiter(rate.Every(failureEvery), failureBurst), ended: make(chan struct{})}
			f.sources.Add(source, a)
		}
		left := a.limiter.TokensAt(f.now())
		if left < 1 {
			return nil, status.Errorf(codes.ResourceExhausted, "%s was refused too often: once every %s is let through", source, failureEvery)
		}
		if left-float64(a.running) >= 1 {
			a.running++
			return func(failed bool) { f.end(a, failed) }, nil
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

func (f *failures) end(a *attempts, failed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a.running--
	if failed {
		a.limiter.AllowN(f.now(), 1)
	}
	close(a.ended)
	a.ended = make(chan struct{})
}
