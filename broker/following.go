package broker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/remotes"
	"github.com/kube-semaphore/semaphore/internal/remotes/follow"
)

// keptIn is the ConfigMap with the RemoteClusters in effect.
const keptIn = "semaphore-broker-remotes"

// following is a leader's state of the RemoteClusters.
type following struct {
	process  *process
	follower *follow.Follower
	store    *follow.Store
	status   *follow.StatusWriter

	mu sync.Mutex
	// decided is the leader's last decision; nil before it knows the objects.
	decided *remotes.Decision
	roots   string
	before  remotes.Objects
	// objects are those of the last decision: a decision on 100 remotes takes tens of milliseconds.
	objects remotes.Objects
}

func newFollowing(ctx context.Context, p *process) (*following, error) {
	client, err := dynamic.NewForConfig(p.rest)
	if err != nil {
		return nil, fmt.Errorf("client for RemoteClusters: %w", err)
	}
	f := &following{process: p, status: follow.NewStatusWriter(client, "semaphore-broker", p.log)}
	if f.store, err = p.kept(); err != nil {
		return nil, err
	}
	if f.before, err = f.store.Load(ctx); err != nil {
		return nil, err
	}
	f.follower = follow.New(client, f.before, p.log)
	return f, nil
}

// unknown returns why no broker works yet, nil once the RemoteClusters are known.
func (f *following) unknown() error {
	if _, known := f.follower.Objects(); known {
		return nil
	}
	return errors.New("RemoteClusters are not known yet")
}

// findings returns what is wrong with the watch of the objects, and with the objects.
func (f *following) findings() []finding.Finding {
	found := slices.Concat(finding.Lines(finding.RemotesUnread, "", f.follower.Problems()),
		finding.Lines(finding.RemotesUnwritten, "", append(f.store.Problems(), f.status.Problems()...)))
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.decided == nil {
		return found
	}
	found = append(found, finding.Line(finding.TrustBundle, "", f.roots)...)
	for _, name := range sortedNames(f.decided.Verdicts) {
		if v := f.decided.Verdicts[name]; !v.Accepted() {
			found = append(found, finding.Line(finding.NotAccepted, name,
				fmt.Sprintf("RemoteCluster %s is not accepted: %s (%s)", name, v.Message, v.Reason))...)
		}
	}
	return found
}

// next waits until the remotes in effect differ from those of a configuration, or until any are known if it is the
// first.
func (f *following) next(ctx context.Context, than *config.Broker, first bool) (*config.Broker, error) {
	for {
		if d := f.decide(ctx); d != nil && (first || !sameRemotes(d.Broker, than)) {
			return d.Broker, nil
		}
		if err := f.wait(ctx); err != nil {
			return nil, err
		}
	}
}

// wait returns when the objects may have changed.
func (f *following) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-f.follower.Changed():
	}
	return kube.Sleep(ctx, settle)
}

// follow passes the remotes in effect to a broker, and writes its state into the status of the objects, until another
// broker must be built. began is closed once the broker works.
func (f *following) follow(ctx context.Context, b *broker, began <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-began:
	}
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		if d := f.decide(ctx); d != nil && !sameRemotes(d.Broker, b.cfg) {
			if !b.follow(d.Broker) {
				return nil
			}
			f.process.operators.Lead(b.leading.Load())
			f.process.log.Info("remotes are in effect", "remotes", d.Broker.Names())
		}
		f.report(ctx, b)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		case <-f.follower.Changed():
			if err := kube.Sleep(ctx, settle); err != nil {
				return err
			}
		}
	}
}

// decide returns what is in effect now; nil while the objects are unknown.
func (f *following) decide(ctx context.Context) *remotes.Decision {
	objects, known := f.follower.Objects()
	if !known {
		return nil
	}
	f.mu.Lock()
	before, last := f.before, f.decided
	same := last != nil && reflect.DeepEqual(objects, f.objects)
	f.objects = objects
	f.mu.Unlock()
	if same {
		_ = f.store.Save(ctx, last.InEffect) // it writes only a difference
		return last
	}
	d := remotes.Decide(f.process.cfg, before, objects, f.publishedPorts(ctx, before, objects))
	bundles := map[string]string{}
	for name, o := range d.InEffect {
		if o.Spec.TrustBundle != "" {
			bundles[name] = o.Spec.TrustBundle
		}
	}
	roots := ""
	if err := f.process.source.SetRoots(bundles); err != nil {
		roots = err.Error()
	}
	f.mu.Lock()
	f.decided, f.before, f.roots = &d, d.InEffect, roots
	f.mu.Unlock()
	_ = f.store.Save(ctx, d.InEffect) // its problem is in the status
	return &d
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
			if at, err := netip.ParseAddrPort(n.Annotations[naming.EndpointAnnotation(name)]); err == nil && ports[name] == 0 {
				ports[name] = at.Port()
			}
		}
	}
	return ports
}
