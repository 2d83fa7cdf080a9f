package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/broker/peering"
	"github.com/kube-semaphore/semaphore/broker/report"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/remotes"
	"github.com/kube-semaphore/semaphore/internal/remotes/follow"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// following is a leader's state of the RemoteClusters.
type following struct {
	*follow.InEffect
	process *process

	mu sync.Mutex
	// removed are the remotes that are no longer in effect, since when.
	removed map[string]time.Time

	// tunnels is what report read of the tunnels at tunnelsAt.
	tunnels   map[string]peering.Tunnels
	tunnelsAt time.Time
}

// tunnelsFor is how long report uses what it read of the tunnels, for their MTU: a sum of all that all agents report.
const tunnelsFor = 10 * time.Second

// tunnelsNow returns what read returned at most tunnelsFor ago.
func (f *following) tunnelsNow(now time.Time, read func() map[string]peering.Tunnels) map[string]peering.Tunnels {
	if now.Sub(f.tunnelsAt) >= tunnelsFor {
		f.tunnels, f.tunnelsAt = read(), now
	}
	return f.tunnels
}

// seriesLinger is how long the series of a removed remote are deleted again: the removal of its objects still counts.
const seriesLinger = 10 * time.Minute

func (f *following) leave(now time.Time, before *remotes.Decision, inEffect remotes.Objects) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if before != nil {
		for name := range before.InEffect {
			f.removed[name] = now
		}
	}
	for name := range inEffect {
		delete(f.removed, name)
	}
}

func (f *following) forgetSeries(now time.Time, b *broker) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, since := range f.removed {
		f.process.received.Forget(name)
		b.options.Metrics.Forget(name)
		if now.Sub(since) > seriesLinger {
			delete(f.removed, name)
		}
	}
}

// unknown returns why no broker works yet, nil once the RemoteClusters are known.
func (f *following) unknown() error {
	if _, known := f.Objects(); known {
		return nil
	}
	return errors.New("RemoteClusters are not known yet")
}

// findings returns the faults of the watch of the objects, and of the objects.
func (f *following) findings() []finding.Finding {
	found, decided := f.Findings(), f.Decided()
	if decided == nil {
		return found
	}
	for _, name := range sortedNames(decided.Verdicts) {
		if v := decided.Verdicts[name]; !v.Accepted() {
			found = append(found, finding.Line(v.Reason, name,
				fmt.Sprintf("RemoteCluster %s is not accepted: %s", name, v.Message))...)
		}
	}
	return found
}

func (f *following) first(ctx context.Context) (*config.Broker, error) {
	for {
		if d := f.decide(ctx); d != nil {
			return d.Broker, nil
		}
		if err := f.Wait(ctx); err != nil {
			return nil, err
		}
	}
}

// follow passes the remotes in effect to the broker, and writes its state into the status of the objects, until ctx
// ends.
func (f *following) follow(ctx context.Context, b *broker) error {
	for {
		if d := f.decide(ctx); d != nil && !sameRemotes(d.Broker, b.cfg.Load()) && b.follow(ctx, d.Broker) {
			f.process.log.Info("remotes are in effect", "remotes", b.cfg.Load().Names())
		}
		f.report(ctx, b)
		f.forgetSeries(time.Now(), b)
		if err := f.Wait(ctx); err != nil {
			return err
		}
	}
}

// decide returns what is in effect now; nil while the objects are unknown.
func (f *following) decide(ctx context.Context) *remotes.Decision {
	before := f.Decided()
	d, anew := f.Decide(f.process.cfg, func(before, objects remotes.Objects) map[string]uint16 {
		return f.publishedPorts(ctx, before, objects)
	})
	if d == nil {
		return nil
	}
	if anew {
		stands := map[string]string{}
		for name, o := range d.InEffect {
			stands[name] = o.SourceID
		}
		f.process.federation.SetSources(stands)
		f.leave(time.Now(), before, d.InEffect)
	}
	d = f.learned(d)
	f.Save(ctx, d)
	return d
}

// learned returns the decision with the clusters that stand for remotes since one connected first, so that the next
// broker knows them.
func (f *following) learned(d *remotes.Decision) *remotes.Decision {
	stands := f.process.federation.Sources()
	next := *d
	next.InEffect = maps.Clone(d.InEffect)
	changed := false
	for name, o := range next.InEffect {
		if uid := stands[name]; uid != "" && uid != o.SourceID {
			o.SourceID, changed = uid, true
			next.InEffect[name] = o
		}
	}
	if !changed {
		return d
	}
	return &next
}

// publishedPorts returns the ports that nodes publish for remotes without a known port, such as after a restore of the
// objects.
func (f *following) publishedPorts(ctx context.Context, before, objects remotes.Objects) map[string]uint16 {
	var unknown []string
	for name, o := range objects {
		if o.ListenPort == 0 && before[name].ListenPort == 0 && len(o.Spec.PodSubnets) > 0 {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) == 0 || !f.process.cfg.Features.Has(config.Encryption) {
		return nil
	}
	// All nodes publish the same.
	nodes, err := f.process.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: 50})
	if err != nil {
		return nil
	}
	ports := map[string]uint16{}
	for _, n := range nodes.Items {
		for _, name := range unknown {
			if n.Annotations[naming.CandidatesAnnotation(name)] != "" {
				continue // a port of a candidate may be a forwarded one
			}
			if at, err := netip.ParseAddrPort(n.Annotations[naming.EndpointAnnotation(name)]); err == nil && ports[name] == 0 {
				ports[name] = at.Port()
			}
		}
	}
	return ports
}

func sortedNames[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }

func (f *following) report(ctx context.Context, b *broker) {
	decided := f.Decided()
	if decided == nil {
		return
	}
	objects, _ := f.Objects()
	links := map[string]*semaphorev1.LinkStatus{}
	all := b.Federation.Status()
	for _, link := range all {
		links[link.GetCluster()] = link
	}
	refused, tunnels := b.Federation.Refused(), map[string]peering.Tunnels{}
	if b.Peering != nil {
		tunnels = f.tunnelsNow(time.Now(), b.Peering.Tunnels)
	}
	f.Status.Keep(objects)
	judged := f.Judged()
	for _, name := range sortedNames(decided.Verdicts) {
		if o, ok := judged[name]; ok {
			s := report.StatusOf(o, decided.Verdicts[name], links[name])
			s.Problem, s.MTU, s.SourceID = refused[name], int32(tunnels[name].MTU), decided.InEffect[name].SourceID
			f.Status.Report(ctx, o, s)
		}
	}
}
