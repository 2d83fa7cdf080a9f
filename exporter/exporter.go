// Package exporter is the part that reads its cluster and tells the others: it wires watch →
// catalog → publish, and runs them. It writes to no cluster, but for the Lease by which one of several replicas
// is chosen to do all this; the others wait, with nothing but probes, metrics and the debug listeners (internal/kube/leader).
package exporter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/exporter/feedback"
	"github.com/kube-semaphore/semaphore/exporter/publish"
	"github.com/kube-semaphore/semaphore/exporter/watch"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/kube/leader"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// Run is the exporter's life, until ctx ends.
func Run(ctx context.Context, cfg *config.Exporter) error {
	source, err := identity.Open(ctx, cfg.TLS, identity.Exporter(cfg.Cluster))
	if err != nil {
		return err
	}
	defer source.Close()
	rest, err := kube.Config(cfg.Kube, "exporter")
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(kube.Protobuf(rest))
	if err != nil {
		return fmt.Errorf("client for the apiserver: %w", err)
	}
	rules, err := rulesOf(cfg)
	if err != nil {
		return err
	}
	reg := program.NewRegistry()
	elector, err := leader.Of("exporter", cfg.LeaderElection, cfg.Kube, reg, slog.Default())
	if err != nil {
		return err
	}
	e := &exporter{
		cfg:      cfg,
		elector:  elector,
		source:   source,
		catalog:  catalog.New(rules),
		recorder: debug.NewRecorder("exporter", cfg.Cluster, ""),
	}
	if e.watcher, err = watch.New(client, kube.NewBlockAffinities(rest), e.catalog, reg); err != nil {
		return err
	}
	e.watcher.Restored(cfg.Restores)
	e.metrics = publish.NewMetrics(reg)
	if (cfg.Events || cfg.AnnotateServices) && cfg.Features.Has(config.Services) {
		e.client, e.events = client, feedback.NewMetrics(reg)
	}
	reg.MustRegister(e)
	return e.run(ctx, reg)
}

func rulesOf(cfg *config.Exporter) (catalog.Rules, error) {
	mirror, err := labels.Parse(cfg.MirrorSelector)
	if err != nil {
		return catalog.Rules{}, fmt.Errorf("mirrorSelector: %w", err)
	}
	global, err := labels.Parse(cfg.GlobalSelector)
	if err != nil {
		return catalog.Rules{}, fmt.Errorf("globalSelector: %w", err)
	}
	rules := catalog.Rules{
		Features: cfg.Features, Own: cfg.Cluster, Mirror: mirror, Global: global, ServiceLabels: cfg.ServiceLabels, LabelDomains: cfg.LabelDomains,
		PodSubnets: cfg.PodPrefixes, AllowedIPs: cfg.AllowedIPs,
	}
	for i, r := range cfg.ExportRules {
		selector, err := labels.Parse(r.Selector)
		if err != nil {
			return catalog.Rules{}, fmt.Errorf("exportRules[%d].selector: %w", i, err)
		}
		rules.Export = append(rules.Export, catalog.ExportRule{Features: r.Kinds, Namespaces: r.Namespaces, Selector: selector, Clusters: r.Clusters})
	}
	for _, broker := range cfg.Brokers {
		rules.Clusters = append(rules.Clusters, broker.Cluster)
	}
	return rules, nil
}

type exporter struct {
	cfg      *config.Exporter
	elector  *leader.Elector
	source   *identity.Source
	catalog  *catalog.Catalog
	watcher  *watch.Watcher
	recorder *debug.Recorder
	metrics  *publish.Metrics
	// client writes on Services what becomes of them, and events counts Events; nil where nothing is to be written.
	client kubernetes.Interface
	events *prometheus.CounterVec

	mu sync.Mutex
	// publishers are those of the leader; a standby has none.
	publishers []*publish.Publisher
}

func (e *exporter) run(ctx context.Context, reg *prometheus.Registry) error {
	g, ctx := errgroup.WithContext(ctx)
	debugServer := debug.NewServer(e.recorder, e.status)
	g.Go(func() error {
		return program.HTTP(ctx, e.cfg.Listen.HTTP, reg, func() (string, error) { return e.elector.Ready(e.watcher.Synced) })
	})
	g.Go(func() error { return debug.ServeSocket(ctx, e.cfg.Listen.DebugSocket, debugServer) })
	g.Go(func() error { return e.serveDebug(ctx, debugServer) })
	g.Go(func() error { return e.elector.Run(ctx, e.lead) })
	return g.Wait()
}

// lead is the work of the one exporter that leads, until ctx ends. Brokers tell leaders apart by their term.
func (e *exporter) lead(ctx context.Context, term uint64) error {
	var publishers []*publish.Publisher
	// The own broker learns at once of another that is lost: nodes get no new keys then.
	lost := make(chan struct{}, 1)
	for _, broker := range e.cfg.Brokers {
		p := publish.New(e.cfg.Cluster, term, broker, e.source, e.catalog, e.recorder, e.metrics)
		p.ReadsFrom(e.watcher)
		publishers = append(publishers, p)
		if broker.Cluster == e.cfg.Cluster {
			p.Reports(e.deliveries, lost)
			continue
		}
		p.OnDisconnect(func() {
			select {
			case lost <- struct{}{}:
			default: // a report that is due has it
			}
		})
	}
	e.mu.Lock()
	e.publishers = publishers
	e.mu.Unlock()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.watcher.Run(ctx) })
	g.Go(func() error {
		started := time.Now()
		if err := e.watcher.WaitForSync(ctx); err != nil {
			return err
		}
		slog.Info("the cluster is read", "took", time.Since(started).Round(time.Millisecond), "objects", e.catalog.Journal().Len())
		return nil
	})
	brokers := map[string]feedback.Broker{}
	for i, p := range publishers {
		brokers[e.cfg.Brokers[i].Cluster] = p
		g.Go(func() error { return p.Run(ctx) })
	}
	if e.events != nil {
		f := feedback.New(e.client, e.catalog, brokers, e.events, slog.Default())
		f.Events, f.Annotates = e.cfg.Events, e.cfg.AnnotateServices
		g.Go(func() error { return f.Run(ctx) })
	}
	return g.Wait()
}

// deliveries are how the leader stands with the brokers of other clusters.
func (e *exporter) deliveries() []*semaphorev1.Delivery {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []*semaphorev1.Delivery
	now := time.Now()
	for i, p := range e.publishers {
		if e.cfg.Brokers[i].Cluster != e.cfg.Cluster {
			out = append(out, p.Delivery(now))
		}
	}
	return out
}

// lagging are the kinds that brokers are told nothing of, by the cluster of the broker, and why.
func (e *exporter) lagging() (kinds map[string][]semaphorev1.Kind, problems []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	kinds = map[string][]semaphorev1.Kind{}
	for i, p := range e.publishers {
		kinds[e.cfg.Brokers[i].Cluster] = p.Lagging()
		problems = append(problems, p.Problems()...)
	}
	return kinds, problems
}

// links are the streams of the leader.
func (e *exporter) links() []*semaphorev1.LinkStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []*semaphorev1.LinkStatus
	for _, p := range e.publishers {
		out = append(out, p.Status())
	}
	return out
}

// serveDebug serves DebugService over mTLS to the operators of this cluster, where a listener is configured.
func (e *exporter) serveDebug(ctx context.Context, server semaphorev1.DebugServiceServer) error {
	if e.cfg.Listen.Debug == "" {
		return nil
	}
	listener, err := net.Listen("tcp", e.cfg.Listen.Debug)
	if err != nil {
		return fmt.Errorf("listen.debug: %w", err)
	}
	operator := identity.Semaphorectl(e.cfg.Cluster)
	g := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(e.source.ServerTLS(func(id spiffeid.ID) error {
			if id != operator {
				return fmt.Errorf("%s may not look here, only %s", id, operator)
			}
			return nil
		}))),
		grpc.MaxConcurrentStreams(16),
		grpc.StreamInterceptor(recovery.StreamServerInterceptor()),
		grpc.UnaryInterceptor(recovery.UnaryServerInterceptor()),
	)
	semaphorev1.RegisterDebugServiceServer(g, server)
	stop := context.AfterFunc(ctx, g.Stop)
	defer stop()
	if err := g.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("debug listener: %w", err)
	}
	return nil
}

func (e *exporter) status() *semaphorev1.GetStatusResponse {
	s := &semaphorev1.GetStatusResponse{}
	if !e.elector.Status(s) {
		return s
	}
	s.Ready, s.Links = true, e.links()
	s.Problems = append(append(s.Problems, e.watcher.Problems()...), e.catalog.Problems()...)
	if err := e.watcher.Synced(); err != nil {
		s.Ready = false
		s.Problems = append(s.Problems, err.Error())
	}
	_, problems := e.lagging()
	s.Problems = append(s.Problems, problems...)
	return s
}

var (
	objectsDesc = prometheus.NewDesc("semaphore_exporter_objects",
		"Objects that are exported to the cluster.", []string{"cluster", "kind"}, nil)
	behindDesc = prometheus.NewDesc("semaphore_exporter_behind",
		"Changes that the broker of the cluster has not acknowledged; only while connected.", []string{"cluster"}, nil)
	heardDesc = prometheus.NewDesc("semaphore_exporter_last_heard_timestamp_seconds",
		"When the broker of the cluster was last heard, Unix time; absent for never.", []string{"cluster"}, nil)
	lagsDesc = prometheus.NewDesc("semaphore_exporter_apiserver_lags",
		"1 while the cluster is told nothing of a kind, because it was told newer things before than what the apiserver gives.", []string{"cluster", "kind"}, nil)
	problemsDesc = prometheus.NewDesc("semaphore_exporter_problems",
		"Objects that are not exported, or not whole, or not to whom they should be, because something is wrong with them.", []string{"reason"}, nil)
	outsideDesc = prometheus.NewDesc("semaphore_exporter_ips_outside_node_prefixes",
		"IPs of exported endpoints and pods that lie outside the prefixes that are published of their nodes, so that no remote cluster reaches them.", nil, nil)
)

// Describe implements prometheus.Collector.
func (e *exporter) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{objectsDesc, behindDesc, heardDesc, lagsDesc, problemsDesc, outsideDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector: the metrics that are the status in numbers.
func (e *exporter) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, link := range e.links() {
		for _, k := range link.GetKinds() {
			gauge(objectsDesc, float64(k.GetObjects()), link.GetCluster(), k.GetKind())
		}
		if link.GetConnected() {
			gauge(behindDesc, float64(link.GetBehind()), link.GetCluster())
		}
		if at := link.GetLastHeard(); at != nil {
			gauge(heardDesc, float64(at.AsTime().UnixMilli())/1000, link.GetCluster())
		}
	}
	lagging, _ := e.lagging()
	for cluster, kinds := range lagging {
		for _, kind := range kinds {
			gauge(lagsDesc, 1, cluster, semaphorev1.KindName(kind))
		}
	}
	counts := e.catalog.CountProblems()
	for _, reason := range catalog.Reasons {
		gauge(problemsDesc, float64(counts[reason]), string(reason))
	}
	gauge(outsideDesc, float64(e.catalog.OutsidePrefixes()))
}
