package exporter

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/exporter/publish"
	"github.com/kube-semaphore/semaphore/internal/bounds"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/remotes"
	"github.com/kube-semaphore/semaphore/internal/remotes/follow"
	"github.com/kube-semaphore/semaphore/internal/volume"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// publishing runs the publishers of a leader, while brokers are added and removed.
type publishing struct {
	exporter *exporter
	term     uint64
	ctx      context.Context
	group    *errgroup.Group
	// lost has a value after the stream to another cluster's broker ended.
	lost chan struct{}
	// stops end the publishers, by cluster, and return after they ended.
	stops map[string]func()
}

func (p *publishing) begin(broker config.ExporterBroker) {
	e := p.exporter
	options := publish.Options{Source: e.watcher, Heartbeat: e.at.heartbeat}
	if broker.Cluster == e.cfg.Cluster {
		options.Deliveries, options.ReportNow = e.deliveries, p.lost
	} else {
		options.Disconnected = p.reportNow
	}
	to := publish.New(e.cfg.Cluster, p.term, broker, e.source, e.catalog, e.recorder, e.metrics, options)
	e.mu.Lock()
	if e.publishers == nil {
		e.publishers = map[string]*publish.Publisher{}
	}
	e.publishers[broker.Cluster] = to
	e.mu.Unlock()
	ctx, cancel := context.WithCancel(p.ctx)
	ended := make(chan struct{})
	p.group.Go(func() error {
		defer close(ended)
		if err := to.Run(ctx); ctx.Err() == nil || p.ctx.Err() != nil {
			return err
		}
		return nil // only this one ends
	})
	if p.stops == nil {
		p.stops = map[string]func(){}
	}
	p.stops[broker.Cluster] = func() {
		cancel()
		<-ended
		e.mu.Lock()
		delete(e.publishers, broker.Cluster)
		e.mu.Unlock()
		to.Forget()
	}
}

// reportNow sends a report to the own broker immediately.
func (p *publishing) reportNow() {
	select {
	case p.lost <- struct{}{}:
	default: // a report that is due has it
	}
}

// following makes the leader publish to the brokers of RemoteClusters.
type following struct {
	*follow.InEffect
	publishing *publishing
	bounds     *follow.Bounds
	// own is the configuration that the objects were judged with.
	own *config.Broker
	// brokers are those that are published to, and offers are the rules of the exports to them.
	brokers map[string]config.ExporterBroker
	offers  map[string]*v1alpha1.Export
}

func newFollowing(ctx context.Context, p *publishing) (*following, error) {
	e := p.exporter
	namespace, err := kube.Namespace(e.cfg.LeaderElection.Namespace)
	if err != nil {
		return nil, err
	}
	f := &following{InEffect: e.inEffect, publishing: p, brokers: map[string]config.ExporterBroker{},
		bounds: follow.NewBounds(e.kube, namespace, slog.Default())}
	if err := f.Begin(ctx); err != nil {
		return nil, err
	}
	if err := f.bounds.Load(ctx); err != nil {
		return nil, err
	}
	return f, nil
}

// findings returns the faults of the watch of the objects, and of their stored copies.
func (f *following) findings() []finding.Finding {
	return slices.Concat(f.Findings(), finding.Lines(finding.RemotesUnwritten, "", f.bounds.Problems()),
		finding.Lines(finding.StoredRestored, "", f.bounds.Reports()))
}

// run follows the objects until ctx ends. It calls decided after each decision.
func (f *following) run(ctx context.Context, decided func()) error {
	for {
		f.own = bounds.Judge(f.publishing.exporter.cfg, volume.ReadFile, f.own)
		if d, anew := f.Decide(f.own, nil); d != nil {
			objects, _ := f.Objects()
			f.Save(ctx, d)
			_ = f.bounds.Save(ctx, f.own, *d, objects, f.publishing.exporter.cfg.WireGuard) // its problem is in the status
			if anew {
				f.take(d)
			}
			decided()
			f.report(ctx, d, objects)
		}
		if err := f.Wait(ctx); err != nil {
			return err
		}
	}
}

func (f *following) take(d *remotes.Decision) {
	e := f.publishing.exporter
	brokers, offers := map[string]config.ExporterBroker{}, map[string]*v1alpha1.Export{}
	for name, o := range d.InEffect {
		if o.Spec.Broker != nil {
			b := config.ExporterBroker{Cluster: name, Address: o.Spec.Broker.Address}
			for _, a := range o.Spec.Broker.OtherAddresses {
				b.OtherAddresses = append(b.OtherAddresses, string(a))
			}
			brokers[name] = b
			offers[name] = o.Spec.Export
		}
	}
	// Clusters that will receive less, or nothing, come before clusters that will receive more.
	for cluster, was := range f.brokers {
		if !reflect.DeepEqual(brokers[cluster], was) {
			f.publishing.stops[cluster]()
			delete(f.brokers, cluster)
		}
	}
	if !maps.EqualFunc(f.offers, offers, remotes.SameExport) {
		rules := map[string][]remotes.ExportRule{}
		for cluster := range offers {
			spec := d.InEffect[cluster].Spec
			rules[cluster], _ = remotes.ExportRules(&spec) // a spec in effect was accepted before
		}
		e.catalog.SetRemotes(f.clusters(offers), rules, time.Now())
		e.watcher.Replay()
		f.offers = offers
	}
	for cluster, broker := range brokers {
		if _, is := f.brokers[cluster]; !is {
			slog.Info("publishing to the broker of a RemoteCluster", "cluster", cluster, "address", broker.Address)
			f.publishing.begin(broker)
			f.brokers[cluster] = broker
		}
	}
}

// clusters returns those with a broker: the own one, if the file has its address, and those of objects.
func (f *following) clusters(offers map[string]*v1alpha1.Export) []string {
	all := slices.Collect(maps.Keys(offers))
	if own := f.publishing.exporter.cfg.LocalBroker; own.Address != "" {
		all = append(all, own.Cluster)
	}
	slices.Sort(all)
	return all
}

// report writes the condition Exporting of each object if it changed.
func (f *following) report(ctx context.Context, d *remotes.Decision, objects remotes.Objects) {
	links := map[string]*semaphorev1.LinkStatus{}
	for _, link := range f.publishing.exporter.links() {
		links[link.GetCluster()] = link
	}
	f.Status.Keep(objects)
	for _, o := range f.Judged().ByAge() {
		c := metav1.Condition{Type: v1alpha1.ConditionExporting, Status: metav1.ConditionFalse,
			ObservedGeneration: o.Generation}
		link := links[o.Name]
		var reason finding.Code
		switch {
		case o.Spec.Broker == nil:
			reason, c.Message = finding.NothingExported, "spec.broker is absent: nothing is exported to the remote cluster"
		case link == nil:
			reason, c.Message = finding.NotInEffect, d.Verdicts[o.Name].Message
		case link.GetConnected():
			c.Status, reason, c.Message = metav1.ConditionTrue, finding.Connected,
				"the broker of the remote cluster takes what is exported"
		case link.GetRefusedSourceId() != "":
			reason, c.Message = finding.SourceRefused, fmt.Sprintf("the broker of the remote cluster refuses this cluster: "+
				"%.512s", link.GetLastError())
		default:
			reason, c.Message = finding.Disconnected, fmt.Sprintf("the broker of the remote cluster is not connected: %.512s",
				link.GetLastError())
		}
		c.Reason = string(reason)
		f.Status.Propose(ctx, o, v1alpha1.RemoteClusterStatus{Conditions: []metav1.Condition{c}})
	}
}
