package publish

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/semaphore/internal/stream/link"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Source is what a catalog is read from. Its methods may be called from any goroutine.
type Source interface {
	// ID names it, see Hello.source_id; empty for unknown.
	ID() string
	// Ready reports whether the catalog holds all there is of a kind.
	Ready(semaphorev1.Kind) bool
	// Read is how far it has been read for a kind, as a resourceVersion; 0 for unknown.
	Read(semaphorev1.Kind) uint64
	// Newest is the newest resourceVersion that the catalog can have anything of a kind from: Read, or more where a kind
	// is made of several things that are not read in step.
	Newest(semaphorev1.Kind) uint64
}

// whole is the source of a catalog that needs none.
type whole struct{}

func (whole) ID() string                     { return "" }
func (whole) Ready(semaphorev1.Kind) bool    { return true }
func (whole) Read(semaphorev1.Kind) uint64   { return 0 }
func (whole) Newest(semaphorev1.Kind) uint64 { return 0 }

// How often it is looked whether more kinds may be told, how long those that are ready wait for the others, and how often
// it is said that an apiserver lags.
const (
	lookEvery = 100 * time.Millisecond
	waitOther = 2 * time.Second
	warnEvery = 30 * time.Second
)

// errMoreKinds ends a stream that does not have all kinds that could be told.
var errMoreKinds = fmt.Errorf("more kinds can be told: %w", link.ErrAgain)

// kinds are those that may be told now: what is not read, or from an apiserver that lags, does not hold back the rest.
func (p *Publisher) kinds() []semaphorev1.Kind {
	p.mu.Lock()
	defer p.mu.Unlock()
	var kinds []semaphorev1.Kind
	for _, kind := range p.catalog.Rules().KindsFor(p.broker.Cluster) {
		if p.from.Ready(kind) && p.from.Read(kind) >= p.needed[kind] {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// await waits until there is something to tell, and a while for the rest of it.
func (p *Publisher) await(ctx context.Context) ([]semaphorev1.Kind, error) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	warn := time.NewTicker(warnEvery)
	defer warn.Stop()
	all := len(p.catalog.Rules().KindsFor(p.broker.Cluster))
	var since time.Time
	for {
		kinds := p.kinds()
		if len(kinds) > 0 && since.IsZero() {
			since = time.Now()
		}
		if len(kinds) == all || len(kinds) > 0 && (time.Since(since) >= waitOther || p.lags()) {
			return kinds, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-warn.C:
			p.warn()
		case <-look.C:
		}
	}
}

// watchKinds ends a stream once there are kinds to tell that it does not have.
func (p *Publisher) watchKinds(ctx context.Context, told []semaphorev1.Kind) error {
	if len(told) == len(p.catalog.Rules().KindsFor(p.broker.Cluster)) {
		return nil
	}
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	warn := time.NewTicker(warnEvery)
	defer warn.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-warn.C:
			p.warn()
		case <-look.C:
			if len(p.kinds()) > len(told) {
				return errMoreKinds
			}
		}
	}
}

// hold takes note of what the broker was told before of a source that we have read less of.
func (p *Publisher) hold(lag *LagError) {
	p.mu.Lock()
	maps.Copy(p.needed, lag.Behind)
	p.mu.Unlock()
	p.warn()
}

// askAnew has the next stream begin with all kinds, and so learn what the broker was told as it knows it then.
func (p *Publisher) askAnew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.needed)
}

func (p *Publisher) lags() bool { return len(p.Lagging()) > 0 }

// Lagging are the kinds of which the broker is told nothing, because it was once told newer things than what the apiserver
// has given us so far.
func (p *Publisher) Lagging() []semaphorev1.Kind {
	p.mu.Lock()
	defer p.mu.Unlock()
	var kinds []semaphorev1.Kind
	for _, kind := range slices.Sorted(maps.Keys(p.needed)) {
		if p.from.Read(kind) < p.needed[kind] {
			kinds = append(kinds, kind)
		} else {
			delete(p.needed, kind)
		}
	}
	return kinds
}

// Problems are why some kinds are not told, a line each.
func (p *Publisher) Problems() []string {
	var lines []string
	for _, kind := range p.Lagging() {
		p.mu.Lock()
		needed := p.needed[kind]
		p.mu.Unlock()
		lines = append(lines, fmt.Sprintf("the apiserver lags: %s has been read up to resourceVersion %d, and the broker of %s was told of %d before; nothing is told of it until that has been read; if this cluster's etcd was put back to an earlier state, raise restores in the exporter's configuration",
			semaphorev1.KindName(kind), p.from.Read(kind), p.broker.Cluster, needed))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.session; s != nil && len(s.labelDomains) > 0 && len(s.peerLabelDomains) > 0 &&
		!slices.Equal(slices.Sorted(slices.Values(s.labelDomains)), slices.Sorted(slices.Values(s.peerLabelDomains))) {
		lines = append(lines, fmt.Sprintf("pods of sets are found by labels of %q, and the broker of %s gives sets labels of %.500q: policies there select by the latter; set labelDomains of both to the same",
			strings.Join(s.labelDomains, ", "), p.broker.Cluster, strings.Join(s.peerLabelDomains[:min(len(s.peerLabelDomains), maxDomainsShown)], ", ")))
	}
	return lines
}

// maxDomainsShown bounds what another cluster adds to the status.
const maxDomainsShown = 8

func (p *Publisher) warn() {
	for _, line := range p.Problems() {
		p.log.Warn(line)
	}
}
