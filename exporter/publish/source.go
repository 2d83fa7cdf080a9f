package publish

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/streams"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Source is what a catalog is read from. Its methods are safe for concurrent use.
type Source interface {
	// ID identifies the source, see Hello.source_id; empty if unknown.
	ID() string
	// Ready reports whether the catalog is complete for a kind.
	Ready(semaphorev1.Kind) bool
	// Read returns the resourceVersion up to which a kind was read; 0 if unknown.
	Read(semaphorev1.Kind) uint64
	// Newest returns the newest resourceVersion that the catalog may contain of a kind. It exceeds Read if the kind is
	// made of several resources, which are read independently.
	Newest(semaphorev1.Kind) uint64
}

// kindsPollInterval is how often the publisher checks for more kinds that it may send, otherKindsWait is how long
// kinds that are ready wait for the others, and lagWarnInterval is how often it logs that an apiserver lags.
const (
	kindsPollInterval = 100 * time.Millisecond
	otherKindsWait    = 2 * time.Second
	lagWarnInterval   = 30 * time.Second
)

// errMoreKinds ends a stream that lacks kinds which can be sent now.
var errMoreKinds = fmt.Errorf("more kinds can be sent: %w", streams.ErrAgain)

// readyKinds returns the kinds that can be sent now. A kind that is not read, or whose apiserver lags, does not delay
// the others.
func (p *Publisher) readyKinds() []semaphorev1.Kind {
	p.mu.Lock()
	defer p.mu.Unlock()
	var kinds []semaphorev1.Kind
	for _, kind := range p.catalog.Rules().KindsFor(p.broker.Cluster) {
		if p.options.Source.Ready(kind) && p.options.Source.Read(kind) >= p.requiredRevision[kind] {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// waitForKinds waits until a kind can be sent, and then up to otherKindsWait for the other kinds.
func (p *Publisher) waitForKinds(ctx context.Context) ([]semaphorev1.Kind, error) {
	all := len(p.catalog.Rules().KindsFor(p.broker.Cluster))
	var since time.Time
	return p.pollKinds(ctx, func(kinds []semaphorev1.Kind) bool {
		if len(kinds) > 0 && since.IsZero() {
			since = time.Now()
		}
		return len(kinds) == all || len(kinds) > 0 && (time.Since(since) >= otherKindsWait || len(p.Lagging()) > 0)
	})
}

// pollKinds returns the kinds that can be sent now, once they are enough.
func (p *Publisher) pollKinds(ctx context.Context, enough func([]semaphorev1.Kind) bool) ([]semaphorev1.Kind, error) {
	poll := time.NewTicker(kindsPollInterval)
	defer poll.Stop()
	warn := time.NewTicker(lagWarnInterval)
	defer warn.Stop()
	for {
		if kinds := p.readyKinds(); enough(kinds) {
			return kinds, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-warn.C:
			p.logProblems()
		case <-poll.C:
		}
	}
}

// watchKinds ends a stream when kinds become ready that it lacks.
func (p *Publisher) watchKinds(ctx context.Context, sent []semaphorev1.Kind) error {
	if len(sent) == len(p.catalog.Rules().KindsFor(p.broker.Cluster)) {
		return nil
	}
	if _, err := p.pollKinds(ctx, func(kinds []semaphorev1.Kind) bool { return len(kinds) > len(sent) }); err != nil {
		return err
	}
	return errMoreKinds
}

// recordLag records up to which resourceVersion the source must be read before kinds are sent to this broker again.
func (p *Publisher) recordLag(lag *LagError) {
	p.mu.Lock()
	maps.Copy(p.requiredRevision, lag.Behind)
	p.mu.Unlock()
	p.logProblems()
}

// Lagging returns the kinds that are not sent to the broker, because it received a newer state before than the
// apiserver has returned so far.
func (p *Publisher) Lagging() []semaphorev1.Kind {
	p.mu.Lock()
	defer p.mu.Unlock()
	var kinds []semaphorev1.Kind
	for _, kind := range slices.Sorted(maps.Keys(p.requiredRevision)) {
		if p.options.Source.Read(kind) < p.requiredRevision[kind] {
			kinds = append(kinds, kind)
		} else {
			delete(p.requiredRevision, kind)
		}
	}
	return kinds
}

// Findings are the kinds that are not sent, and label domains that contradict the broker's.
func (p *Publisher) Findings() (found []finding.Finding) {
	for _, kind := range p.Lagging() {
		p.mu.Lock()
		needed := p.requiredRevision[kind]
		p.mu.Unlock()
		found = append(found, finding.Line(finding.ApiserverLags, p.broker.Cluster,
			fmt.Sprintf("the apiserver lags: %s has "+
				"been read up to resourceVersion %d, and the broker of %s received %d before; the kind is not sent until that has "+
				"been read; if this cluster's etcd was restored from a backup, raise restores in the exporter's configuration",
				semaphorev1.KindName(kind), p.options.Source.Read(kind), p.broker.Cluster, needed))...)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.otherStands {
		found = append(found, finding.Line(finding.SourceRefused, p.broker.Cluster, fmt.Sprintf("the broker of %s refuses "+
			"this cluster: %s", p.broker.Cluster, p.lastError))...)
	}
	if p.omitted > 0 {
		found = append(found, finding.Line(finding.OutcomesOmitted, p.broker.Cluster, fmt.Sprintf("the broker of %s "+
			"reports the result of %d Services, and omits more that have problems there",
			p.broker.Cluster, len(p.outcomes)))...)
	}
	if s := p.session; s != nil && len(s.labelDomains) > 0 && len(s.peerLabelDomains) > 0 &&
		!slices.Equal(slices.Sorted(slices.Values(s.labelDomains)), slices.Sorted(slices.Values(s.peerLabelDomains))) {
		found = append(found, finding.Line(finding.LabelDomainsDiffer, p.broker.Cluster,
			fmt.Sprintf("labels of %q put pods "+
				"into sets here, and the broker of %s labels sets with %.300q, by which policies there select; set labelDomains "+
				"to the same domains in both",
				strings.Join(s.labelDomains, ", "), p.broker.Cluster,
				strings.Join(s.peerLabelDomains[:min(len(s.peerLabelDomains), maxDomainsShown)], ", ")))...)
	}
	return found
}

// maxDomainsShown bounds what another cluster can add to the status.
const maxDomainsShown = 8

func (p *Publisher) logProblems() {
	for _, line := range finding.Texts(p.Findings()) {
		p.log.Warn(line)
	}
}
