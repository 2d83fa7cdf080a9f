package broker

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/broker/federation"
	"github.com/kube-semaphore/semaphore/broker/peering"
	"github.com/kube-semaphore/semaphore/broker/report"
	"github.com/kube-semaphore/semaphore/broker/services"
	"github.com/kube-semaphore/semaphore/broker/stored"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/kube/leader"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/described"
	"github.com/kube-semaphore/semaphore/test/testkit/metricsdoc"
)

// TestMetricsAreDocumented checks that docs/metrics.md has every metric of the broker with its labels and its help
// text.
func TestMetricsAreDocumented(t *testing.T) {
	cfg := testkit.Value(described.Broker([]byte("cluster: c1\nlocalSubnets: [10.1.0.0/16]\nremotes: [{name: c2, " +
		"podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]}]")))(t)
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: "https://127.0.0.1:1"}) // nothing is asked of it
	table := &metricsdoc.Table{}
	testkit.Value(leader.New(leader.Options{Registry: table, Log: slog.Default()}))(t)
	options := apply.Options{Metrics: apply.NewMetrics(table), Log: slog.Default()}
	state := peering.NewState()
	e := newEngines(cfg, state, nil, time.Now)
	report.NewEvents(client, "semaphore", nil, table, slog.Default())
	table.MustRegister(stored.NewDrains(client, "semaphore", nil, options))
	apply.Services(client, "semaphore", nil, e.services.DesiredServices(), options)
	peering.New(peering.Options{Kube: client, State: state, Metrics: peering.NewMetrics(table), Log: slog.Default()})
	federation.New(federation.Options{Metrics: federation.NewMetrics(table)})
	newServers(table, slog.Default())
	table.MustRegister(every[prometheus.Collector](e)...)
	table.MustRegister(federation.NewPresence(federation.PresenceOptions{}), debug.Findings(nil),
		services.NewTraffic("semaphore", nil), identity.Expiry(nil, "c1"))
	table.Compare(t, "../docs/metrics.md", "semaphore-broker")
}
