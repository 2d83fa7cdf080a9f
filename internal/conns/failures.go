package conns

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

var ErrTooOften = errors.New("the source was refused too often")

// Failures limits how often each source may fail to be admitted, where each attempt costs others something.
type Failures struct {
	burst int
	every time.Duration
	most  int

	mu      sync.Mutex
	sources map[string]*list.Element
	used    *list.List // of *attempts, the last used first
}

// attempts of one source. A running attempt may fail, and counts as failed until it ends.
type attempts struct {
	source  string
	limiter *rate.Limiter
	running int
	// look has one who waits look again, once. Who then needs no longer wait passes it on: were all to look whenever an
	// attempt ends, a herd behind one address would cost the square of its size.
	look chan struct{}
}

// NewFailures has a source fail burst times in a row, and then once every interval. Successful admissions do not count.
// Of more sources than that number, the least recently used are forgotten.
func NewFailures(burst int, every time.Duration, sources int) *Failures {
	return &Failures{burst: burst, every: every, most: sources, sources: map[string]*list.Element{}, used: list.New()}
}

func (f *Failures) Sources() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.sources)
}

// Acquire waits until a source has no more running attempts than may fail. The error is ErrTooOften, or that of ctx.
// The caller must call end.
func (f *Failures) Acquire(ctx context.Context, source string) (end func(failed bool), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.of(source)
	defer a.next()
	for {
		left := a.limiter.TokensAt(time.Now())
		if left < 1 {
			return nil, ErrTooOften
		}
		if left-float64(a.running) >= 1 {
			a.running++
			return func(failed bool) { f.release(a, failed) }, nil
		}
		f.mu.Unlock()
		select {
		case <-a.look:
		case <-ctx.Done():
		}
		f.mu.Lock()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// of returns the attempts of a source, and forgets those of another one if there are too many.
func (f *Failures) of(source string) *attempts {
	if e, ok := f.sources[source]; ok {
		f.used.MoveToFront(e)
		return e.Value.(*attempts)
	}
	if len(f.sources) >= f.most {
		delete(f.sources, f.used.Remove(f.used.Back()).(*attempts).source)
	}
	a := &attempts{source: source, limiter: rate.NewLimiter(rate.Every(f.every), f.burst), look: make(chan struct{}, 1)}
	f.sources[source] = f.used.PushFront(a)
	return a
}

func (f *Failures) release(a *attempts, failed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a.running--
	if failed {
		a.limiter.AllowN(time.Now(), 1)
	}
	a.next()
}

func (a *attempts) next() {
	select {
	case a.look <- struct{}{}:
	default:
	}
}
