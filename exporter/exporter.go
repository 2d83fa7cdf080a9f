// Package exporter reads its cluster and publishes it to brokers: it wires watch → catalog → publish, and runs them.
// It writes only the Lease that elects the leader among its replicas and, if configured, Events and annotations on
// Services. Standbys serve probes, metrics and the debug listeners only (internal/kube/leader).
package exporter

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/exporter/publish"
	"github.com/kube-semaphore/semaphore/exporter/report"
	"github.com/kube-semaphore/semaphore/internal/bounds"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/kube/leader"
	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/internal/program"
	"github.com/kube-semaphore/semaphore/internal/remotes/follow"
	"github.com/kube-semaphore/semaphore/internal/volume"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// intervals are those at which an exporter looks and reports. Tests shorten them.
type intervals struct {
	// heartbeat is the longest time between two messages to a broker, and store the interval at which the revision of the
	// cluster's store is read. For poll and settle see feedback.Feedback.
	heartbeat, store, poll, settle time.Duration
}

var usual = intervals{
	heartbeat: publish.HeartbeatInterval, store: kube.StoreEvery, poll: report.PollInterval,
	settle: report.SettlePeriod,
}

// Run exports until ctx ends. It fails earlier if the certificate, the access to the apiserver or a listener is
// unusable, or the lease is lost.
func Run(ctx context.Context, cfg *config.Exporter) error { return runAt(ctx, cfg, usual) }

func runAt(ctx context.Context, cfg *config.Exporter, at intervals) error {
	source, err := identity.Open(ctx, cfg.TLS, identity.Exporter(cfg.Cluster))
	if err != nil {
		return err
	}
	defer source.Close()
	restConfig, err := kube.Config(cfg.Kube, "exporter")
	if err != nil {
		return err
	}
	reg := program.NewRegistry()
	reg.MustRegister(identity.Expiry(source, cfg.Cluster))
	elector, err := leader.Of("exporter", cfg.LeaderElection, cfg.Kube, reg, slog.Default())
	if err != nil {
		return err
	}
	restConfig.Wrap(elector.Guard)
	client, err := kubernetes.NewForConfig(kube.Protobuf(restConfig))
	if err != nil {
		return fmt.Errorf("client for the apiserver: %w", err)
	}
	inEffect, err := follow.NewInEffect(follow.Options{
		Rest: restConfig, Client: client, Namespace: cfg.LeaderElection.Namespace, Part: "semaphore-exporter",
		SetRoots: source.SetRoots, Log: slog.Default(),
	})
	if err != nil {
		return err
	}
	if !cfg.Foreign() {
		if err := inEffect.RefuseLosses(ctx, bounds.Judge(cfg, volume.ReadFile, nil)); err != nil {
			return err
		}
	}
	rules := rulesOf(cfg)
	e := &exporter{
		cfg:      cfg,
		at:       at,
		rest:     restConfig,
		kube:     client,
		elector:  elector,
		inEffect: inEffect,
		source:   source,
		catalog:  catalog.New(rules),
		recorder: debug.NewRecorder("exporter", cfg.Cluster, ""),
	}
	watched := publish.WatcherOptions{Restores: cfg.Restores, StoreEvery: at.store}
	if rules.MultiCluster {
		if e.mcs, err = mcs.New(restConfig, mcs.Exporter); err != nil {
			return err
		}
		exports := e.mcs.Exports()
		watched.Exports = func(unread *kube.Unread) *cache.ListWatch { return exports.Follow("", unread) }
		e.conditions = report.NewConditions(cfg.Cluster, e.mcs, e.catalog, e.brokers, report.NewConditionMetrics(reg),
			slog.Default())
	}
	affinities := kube.NewBlockAffinities(restConfig)
	if e.watcher, err = publish.NewWatcher(client, affinities, e.catalog, reg, watched); err != nil {
		return err
	}
	e.metrics = publish.NewMetrics(reg)
	if (cfg.Events || cfg.AnnotateServices) && cfg.Features.Has(config.Services) {
		e.events = report.NewFeedbackMetrics(reg)
	}
	reg.MustRegister(e, debug.Findings(e.found))
	return e.run(ctx, reg)
}

func rulesOf(cfg *config.Exporter) catalog.Rules {
	rules := catalog.Rules{
		Features: cfg.Features, Own: cfg.Cluster, Mirror: cfg.Mirror, Global: cfg.Global,
		ServiceLabels: cfg.ServiceLabels, LabelDomains: cfg.LabelDomains, MultiCluster: cfg.MCS.Enabled,
		PodSubnets: cfg.PodPrefixes, AllowedIPs: cfg.AllowedIPs,
	}
	if b := cfg.LocalBroker; b.Address != "" {
		rules.Clusters = []string{b.Cluster}
	}
	return rules
}

type exporter struct {
	cfg     *config.Exporter
	at      intervals
	rest    *rest.Config
	kube    kubernetes.Interface
	elector *leader.Elector
	// inEffect is unused for a foreign cluster.
	inEffect *follow.InEffect
	source   *identity.Source
	catalog  *catalog.Catalog
	watcher  *publish.Watcher
	// mcs reads ServiceExports and writes their conditions; nil if the feature is off.
	mcs        *mcs.Client
	conditions *report.Conditions
	recorder   *debug.Recorder
	metrics    *publish.Metrics
	// events counts Events; nil if neither they nor annotations of Services are configured.
	events *prometheus.CounterVec

	mu sync.Mutex
	// publishers of the leader by cluster; empty on a standby.
	publishers map[string]*publish.Publisher
	// following is nil for a foreign cluster, and on a standby.
	following atomic.Pointer[following]
}

func (e *exporter) run(ctx context.Context, reg *prometheus.Registry) error {
	g, ctx := errgroup.WithContext(ctx)
	debugServer := debug.NewServer(e.recorder, e.status, debug.Answers{Locate: e.locate})
	g.Go(func() error {
		return program.Pages{Metrics: reg, Ready: e.ready, Found: e.found}.Serve(ctx, e.cfg.Listen.HTTP)
	})
	g.Go(func() error { return debug.ServeSocket(ctx, e.cfg.Listen.DebugSocket, debugServer) })
	g.Go(func() error { return e.serveDebug(ctx, debugServer) })
	g.Go(func() error { return e.elector.Run(ctx, e.lead) })
	return g.Wait()
}

// lead runs the leader's work until ctx ends. Brokers distinguish leaders by their term.
func (e *exporter) lead(ctx context.Context, term uint64) error {
	g, ctx := errgroup.WithContext(ctx)
	// The own broker must know immediately that another one is lost: nodes get no new keys then.
	p := &publishing{exporter: e, term: term, ctx: ctx, group: g, lost: make(chan struct{}, 1)}
	if e.cfg.LocalBroker.Address != "" {
		p.begin(e.cfg.LocalBroker)
	}
	g.Go(func() error { return e.watcher.Run(ctx) })
	g.Go(func() error {
		started := time.Now()
		if err := e.watcher.WaitForSync(ctx); err != nil {
			return err
		}
		slog.Info("read all objects of the cluster", "took", time.Since(started).Round(time.Millisecond), "objects",
			e.catalog.Journal().Len())
		return nil
	})
	decided := make(chan struct{}) // closed when it is known to which clusters Services are offered
	if !e.cfg.Foreign() {
		f, err := newFollowing(ctx, p)
		if err != nil {
			return err
		}
		e.following.Store(f)
		g.Go(func() error { return f.Run(ctx) })
		g.Go(func() error { return f.run(ctx, sync.OnceFunc(func() { close(decided) })) })
	} else {
		close(decided)
	}
	g.Go(func() error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-decided:
			return e.report(ctx)
		}
	})
	return g.Wait()
}

// report reports the results of Services and ServiceExports to their owners, until ctx ends. Before the RemoteClusters
// are known it would say of each that no cluster receives it.
func (e *exporter) report(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	if e.events != nil {
		f := report.NewFeedback(e.kube, e.catalog, e.brokers, e.events, slog.Default())
		f.Events, f.Annotates = e.cfg.Events, e.cfg.AnnotateServices
		f.Poll, f.Settle = e.at.poll, e.at.settle
		f.Complete = func() bool { return e.watcher.Ready(semaphorev1.Kind_KIND_SERVICE) }
		g.Go(func() error { return f.Run(ctx) })
	}
	if e.conditions != nil {
		g.Go(func() error {
			// Before the Services are read, each export seems to lack its own.
			for !e.watcher.Ready(semaphorev1.Kind_KIND_SERVICE) {
				if err := kube.Sleep(ctx, time.Second); err != nil {
					return err
				}
			}
			return e.conditions.Run(ctx)
		})
	} else if e.cfg.Kube.RemoteAPIURL == "" { // an exporter that reads another cluster never wrote one there
		g.Go(func() error { return e.removeConditions(ctx) })
	}
	return g.Wait()
}

// all returns the publishers of the leader, sorted by cluster.
func (e *exporter) all() []*publish.Publisher {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []*publish.Publisher
	for _, cluster := range slices.Sorted(maps.Keys(e.publishers)) {
		all = append(all, e.publishers[cluster])
	}
	return all
}

// brokers returns those that the leader publishes to, by cluster.
func (e *exporter) brokers() map[string]report.Broker {
	all := map[string]report.Broker{}
	for _, p := range e.all() {
		all[p.Broker().Cluster] = p
	}
	return all
}

// deliveries returns whether the brokers of other clusters receive the leader's exports.
func (e *exporter) deliveries() []*semaphorev1.Delivery {
	var out []*semaphorev1.Delivery
	now := time.Now()
	for _, p := range e.all() {
		if p.Broker().Cluster != e.cfg.Cluster {
			out = append(out, p.Delivery(now))
		}
	}
	return out
}

func (e *exporter) links() []*semaphorev1.LinkStatus {
	var out []*semaphorev1.LinkStatus
	for _, p := range e.all() {
		out = append(out, p.Status())
	}
	return out
}

// serveDebug serves DebugService over mTLS to the operators of this cluster, if listen.debug is configured.
func (e *exporter) serveDebug(ctx context.Context, server semaphorev1.DebugServiceServer) error {
	if e.cfg.Listen.Debug == "" {
		return nil
	}
	listener, err := net.Listen("tcp", e.cfg.Listen.Debug)
	if err != nil {
		return fmt.Errorf("listen.debug: %w", err)
	}
	operator := identity.Semaphorectl(e.cfg.Cluster)
	return debug.ServeTLS(ctx, listener, e.source.ServerTLS(func(id spiffeid.ID) error {
		if id != operator {
			return fmt.Errorf("%s may not use the debug listener, only %s may", id, operator)
		}
		return nil
	}), server)
}

// ready returns why the process can neither work nor take over; nil if it can.
func (e *exporter) ready() (note string, err error) { return e.elector.Ready(e.watcher.Synced) }

func (e *exporter) status() *semaphorev1.GetStatusResponse {
	s, found := e.describe(e.catalog.Findings)
	finding.Judge(s, found...)
	return s
}

// found returns the findings for a scrape: those of the status, without objects.
func (e *exporter) found() []finding.Finding {
	s, found := e.describe(func() (found []finding.Finding) {
		for code, n := range e.catalog.CountProblems() {
			found = append(found, finding.New(code, "", n))
		}
		return found
	})
	return finding.Found(s, found...)
}

// describe returns a status and its findings. objects returns the findings about objects.
func (e *exporter) describe(objects func() []finding.Finding) (*semaphorev1.GetStatusResponse, []finding.Finding) {
	s := &semaphorev1.GetStatusResponse{Part: "exporter", Now: timestamppb.Now()} // which the judgement needs
	leads, problem := e.elector.Status(s)
	found := finding.Line(finding.LeaseFailed, "", problem)
	if _, err := e.ready(); err != nil {
		found = append(found, finding.Line(finding.NotReady, "", err.Error())...)
	}
	if leads {
		s.Ready, s.Links = e.watcher.Synced() == nil, e.links()
		found = slices.Concat(found, e.findings(), objects())
	}
	return s, found
}

// findings returns the faults of a leader and of objects, except those that the fields of its status show.
func (e *exporter) findings() []finding.Finding {
	found := e.watcher.Findings()
	if e.conditions != nil {
		found = append(found, finding.Lines(finding.ConditionsUnwritten, "", e.conditions.Problems())...)
	}
	for _, p := range e.all() {
		found = append(found, p.Findings()...)
	}
	if f := e.following.Load(); f != nil {
		found = append(found, f.findings()...)
	}
	return found
}

var (
	objectsDesc = prometheus.NewDesc("semaphore_exporter_objects",
		"Objects that are exported to the cluster.", []string{"cluster", "kind"}, nil)
	behindDesc = prometheus.NewDesc("semaphore_exporter_behind",
		"Changes that the broker of the cluster has not acknowledged; only while connected.", []string{"cluster"}, nil)
	heardDesc = prometheus.NewDesc("semaphore_exporter_last_heard_timestamp_seconds",
		"Unix time of the last message of the broker of the cluster; absent before the first.", []string{"cluster"}, nil)
	lagsDesc = prometheus.NewDesc("semaphore_exporter_apiserver_lags",
		"1 while a kind is not sent to the cluster, because the cluster received a newer state before than the apiserver "+
			"returns.", []string{"cluster", "kind"}, nil)
	problemsDesc = prometheus.NewDesc("semaphore_exporter_problems",
		"Objects that are not exported, or only in part, or not to every cluster that they name, because something is "+
			"wrong with them.", []string{"reason"}, nil)
	outsideDesc = prometheus.NewDesc("semaphore_exporter_ips_outside_node_prefixes",
		"IPs of exported endpoints and pods that lie outside the exported prefixes of their nodes, so that no remote "+
			"cluster reaches them.", nil, nil)
)

func (e *exporter) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{objectsDesc, behindDesc, heardDesc, lagsDesc, problemsDesc, outsideDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector with metrics of the status.
func (e *exporter) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, link := range e.links() {
		for _, k := range link.GetKinds() {
			gauge(objectsDesc, float64(k.GetObjects()), link.GetCluster(), semaphorev1.KindName(k.GetKind()))
		}
		if link.GetConnected() {
			gauge(behindDesc, float64(link.GetBehind()), link.GetCluster())
		}
		if at := link.GetLastHeard(); at != nil {
			gauge(heardDesc, float64(at.AsTime().UnixMilli())/1000, link.GetCluster())
		}
	}
	for _, p := range e.all() {
		for _, kind := range p.Lagging() {
			gauge(lagsDesc, 1, p.Broker().Cluster, semaphorev1.KindName(kind))
		}
	}
	counts := e.catalog.CountProblems()
	for _, reason := range catalog.Reasons {
		gauge(problemsDesc, float64(counts[reason]), string(reason))
	}
	gauge(outsideDesc, float64(e.catalog.OutsidePrefixes()))
}
