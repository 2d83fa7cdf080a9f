package peering

import (
	"net"
	"net/netip"
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
	sources *lru.Cache // source → *rate.Limiter
}

func newFailures(now func() time.Time) *failures {
	return &failures{now: now, sources: lru.New(maxSources)}
}

// source is what addresses are told apart by: an IPv4 address, or the /64 that a single host may have of IPv6.
func source(addr net.Addr) string {
	at, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return addr.String()
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is4() {
		return ip.String()
	}
	prefix, err := ip.Prefix(64)
	if err != nil {
		return ip.String()
	}
	return prefix.String()
}

// check refuses a source that has failed too often.
func (f *failures) check(source string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	l, ok := f.sources.Get(source)
	if ok && l.(*rate.Limiter).TokensAt(f.now()) < 1 {
		return status.Errorf(codes.ResourceExhausted, "%s was refused too often: once every %s is let through", source, failureEvery)
	}
	return nil
}

// failed notes that a source was refused.
func (f *failures) failed(source string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l, ok := f.sources.Get(source)
	if !ok {
		l = rate.NewLimiter(rate.Every(failureEvery), failureBurst)
		f.sources.Add(source, l)
	}
	l.(*rate.Limiter).AllowN(f.now(), 1)
}
