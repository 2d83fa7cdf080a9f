package rules

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/promqltest"
	prometheus "github.com/prometheus/prometheus/rules"
	"sigs.k8s.io/yaml"
)

const (
	pod      = `namespace="semaphore",pod="a"`
	leads    = `semaphore_leader{` + pod + `,container="broker"} 1+0x40`
	standsBy = `semaphore_leader{` + pod + `,container="broker"} 0+0x40`
	other    = `semaphore_leader{namespace="semaphore",pod="b",container="broker"} 1+0x40`
	// As Prometheus stores it: the labels of the target come first.
	ownName = `semaphore_broker_own_name_endpoints{` + pod + `,exported_namespace="shop",service="web",cluster="c2",`
	seconds = 30 // between two samples
)

// recorded are series, one sample each 30 s, and whether an alert fires 20 minutes later at the latest.
type recorded struct {
	name   string
	series []string
	fires  bool
}

// cases of each alert: it fires, and is quiet when all is well, too early, or at a standby.
var cases = map[string][]recorded{
	"SemaphoreNoLeader": {
		{"both are standbys", []string{standsBy, `semaphore_leader{namespace="semaphore",pod="b",container="broker"} 0+0x40`},
			true},
		{"one leads", []string{standsBy, other}, false},
		{"a change of leader", []string{`semaphore_leader{` + pod + `,container="broker"} 1 1 1 0 0 1+0x35`}, false},
		{"no pod is left", []string{`semaphore_leader{` + pod + `,container="broker"} 1+0x4 stale`}, true},
		{"another pod leads", []string{`semaphore_leader{` + pod + `,container="broker"} 1+0x2 stale`, other}, false},
	},
	"SemaphoreTwoLeaders": {
		{"two", []string{leads, other}, true},
		{"one of each part", []string{leads, `semaphore_leader{namespace="semaphore",pod="b",container="exporter"} 1+0x40`},
			false},
	},
	"SemaphoreRemoteDisconnected": {
		{"not connected", []string{leads, `semaphore_broker_connected{` + pod + `,cluster="c2"} 0+0x40`}, true},
		{"a standby", []string{standsBy, other, `semaphore_broker_connected{` + pod + `,cluster="c2"} 0+0x40`}, false},
		{"connected", []string{leads, `semaphore_broker_connected{` + pod + `,cluster="c2"} 1+0x40`}, false},
		{"for a moment", []string{leads, `semaphore_broker_connected{` + pod + `,cluster="c2"} 1 1 0 0 0 1+0x35`}, false},
	},
	"SemaphoreRemoteStale": {
		{"last heard at the start", []string{leads, `semaphore_broker_kind_last_heard_timestamp_seconds{` + pod +
			`,cluster="c2",kind="service"} 0+0x40`}, true},
		{"heard all the time", []string{leads, `semaphore_broker_kind_last_heard_timestamp_seconds{` + pod +
			`,cluster="c2",kind="service"} 0+30x40`}, false},
		{"a standby", []string{standsBy, other, `semaphore_broker_kind_last_heard_timestamp_seconds{` + pod +
			`,cluster="c2",kind="service"} 0+0x40`}, false},
	},
	"SemaphoreClusterGone": {
		{"gone", []string{leads, `semaphore_broker_cluster_gone{` + pod + `,cluster="c2"} 1+0x40`}, true},
		{"there", []string{leads, `semaphore_broker_cluster_gone{` + pod + `,cluster="c2"} 0+0x40`}, false},
	},
	"SemaphoreObjectsRetained": {
		{"objects", []string{leads, `semaphore_broker_retained{` + pod + `,cluster="c2",kind="service"} 70+0x40`}, true},
		{"peers", []string{leads, `semaphore_broker_retained{` + pod + `,cluster="c2",kind="node"} 70+0x40`}, true},
		{"nothing", []string{leads, `semaphore_broker_retained{` + pod + `,cluster="c2",kind="service"} 0+0x40`}, false},
	},
	"SemaphoreObjectsRefused": {
		{"refused", []string{leads, `semaphore_broker_refused{` + pod + `,cluster="c2",kind="service"} 1+0x40`}, true},
		{"fixed in time", []string{leads, `semaphore_broker_refused{` + pod + `,cluster="c2",kind="service"} 1+0x10 0+0x30`},
			false},
	},
	"SemaphoreLimitNear": {
		{"95 of 100", []string{leads, `semaphore_broker_objects{` + pod + `,cluster="c2",kind="node"} 95+0x40`,
			`semaphore_broker_objects_limit{` + pod + `,cluster="c2",kind="node"} 100+0x40`}, true},
		{"50 of 100", []string{leads, `semaphore_broker_objects{` + pod + `,cluster="c2",kind="node"} 50+0x40`,
			`semaphore_broker_objects_limit{` + pod + `,cluster="c2",kind="node"} 100+0x40`}, false},
	},
	"SemaphoreWritesFail": {
		{"errors", []string{`semaphore_broker_writes_total{` + pod + `,kind="service",op="create",result="error"} 0+3x40`},
			true},
		{"foreign", []string{`semaphore_broker_writes_total{` + pod + `,kind="service",op="create",result="foreign"} 0+1x40`},
			true},
		{"conflicts and successes",
			[]string{`semaphore_broker_writes_total{` + pod + `,kind="service",op="create",result="ok"} 0+3x40`,
				`semaphore_broker_writes_total{` + pod + `,kind="service",op="update",result="conflict"} 0+3x40`}, false},
		{"errors of long ago", []string{`semaphore_broker_writes_total{` + pod +
			`,kind="service",op="create",result="error"} 5+0x40`}, false},
	},
	"SemaphoreMirrorsBehind": {
		{"two are missing", []string{leads, `semaphore_broker_objects_desired{` + pod + `,kind="service"} 10+0x40`,
			`semaphore_broker_objects_present{` + pod + `,kind="service"} 8+0x40`}, true},
		{"all are there", []string{leads, `semaphore_broker_objects_desired{` + pod + `,kind="service"} 10+0x40`,
			`semaphore_broker_objects_present{` + pod + `,kind="service"} 10+0x40`}, false},
	},
	"SemaphoreServedByOtherCluster": {
		{"failed over", []string{leads, ownName + `use="failover"} 2+0x40`}, true},
		{"failed over for a while", []string{leads, ownName + `use="failover"} 2+0x10 _x30`}, false},
		{"without a ready endpoint", []string{leads, ownName + `use="failover"} 0+0x40`}, false},
		{"as its owner wants it", []string{leads, ownName + `use="all"} 2+0x40`}, false},
	},
	"SemaphorePropagationSlow": {
		{"a minute", []string{bucket("1", 0), bucket("30", 0), bucket("60", 5), bucket("+Inf", 5)}, true},
		{"a second", []string{bucket("1", 5), bucket("30", 5), bucket("60", 5), bucket("+Inf", 5)}, false},
		{"no change", []string{bucket("1", 0), bucket("30", 0), bucket("60", 0), bucket("+Inf", 0)}, false},
	},
	"SemaphoreExporterDisconnected": {
		{"not connected", []string{leads, `semaphore_exporter_connected{` + pod + `,cluster="c2"} 0+0x40`}, true},
		{"connected", []string{leads, `semaphore_exporter_connected{` + pod + `,cluster="c2"} 1+0x40`}, false},
		{"a standby", []string{standsBy, other, `semaphore_exporter_connected{` + pod + `,cluster="c2"} 0+0x40`}, false},
	},
	"SemaphoreApiserverLags": {
		{"lags", []string{leads, `semaphore_exporter_apiserver_lags{` + pod + `,cluster="c2",kind="node"} 1+0x40`}, true},
		{"for a minute", []string{leads, `semaphore_exporter_apiserver_lags{` + pod +
			`,cluster="c2",kind="node"} 1 1 0+0x38`}, false},
	},
	"SemaphoreAgentDisconnected": {
		{"not attached", []string{`semaphore_agent_connected{` + pod + `} 0+0x40`}, true},
		{"a change of broker", []string{`semaphore_agent_connected{` + pod + `} 1 1 0 0 1+0x36`}, false},
	},
	"SemaphorePeersSilent": {
		{"silent", []string{`semaphore_agent_peers{` + pod + `,device="wireguard.c2",state="silent"} 2+0x40`}, true},
		{"talking and idle", []string{`semaphore_agent_peers{` + pod + `,device="wireguard.c2",state="silent"} 0+0x40`,
			`semaphore_agent_peers{` + pod + `,device="wireguard.c2",state="talking"} 5+0x40`, `semaphore_agent_peers{` + pod +
				`,device="wireguard.c2",state="idle"} 5+0x40`}, false},
	},
	"SemaphorePeersMissing": {
		{"fewer", []string{`semaphore_agent_peers_desired{` + pod + `,device="wireguard.c2"} 5+0x40`,
			`semaphore_agent_peers{` + pod + `,device="wireguard.c2",state="talking"} 1+0x40`,
			`semaphore_agent_peers{` + pod + `,device="wireguard.c2",state="idle"} 3+0x40`}, true},
		{"all", []string{`semaphore_agent_peers_desired{` + pod + `,device="wireguard.c2"} 5+0x40`,
			`semaphore_agent_peers{` + pod + `,device="wireguard.c2",state="talking"} 2+0x40`,
			`semaphore_agent_peers{` + pod + `,device="wireguard.c2",state="idle"} 3+0x40`}, false},
	},
	"SemaphoreClearPackets": {
		{"some", []string{`semaphore_agent_clear_packets_total{` + pod +
			`,device="wireguard.c2",direction="out"} 0 0 7+0x38`}, true},
		{"none since the start", []string{`semaphore_agent_clear_packets_total{` + pod +
			`,device="wireguard.c2",direction="out"} 7+0x40`}, false},
	},
	"SemaphoreFindingError": {
		{"an error", []string{`semaphore_findings{` + pod + `,code="LeaseFailed",level="error",cluster=""} 2+0x40`}, true},
		{"no remote name resolves", []string{`semaphore_findings{` + pod +
			`,code="CoreDNSLost",level="error",cluster=""} 1+0x40`}, true},
		{"a node without an agent", []string{leads, `semaphore_findings{` + pod +
			`,code="NoAgent",level="error",cluster=""} 1+0x40`}, true},
		{"a leader that is not ready", []string{leads, `semaphore_findings{` + pod +
			`,code="NotReady",level="error",cluster=""} 1+0x40`}, true},
		{"a broker that does not confirm a device", []string{`semaphore_agent_connected{` + pod + `} 1+0x40`,
			`semaphore_findings{` + pod + `,code="DeviceStale",level="error",cluster="c2"} 1+0x40`}, true},
		{"fixed in time", []string{`semaphore_findings{` + pod + `,code="LeaseFailed",level="error",cluster=""} 1+0x20 _x20`},
			false},
	},
	"SemaphoreFindingWarning": {
		{"a warning", []string{`semaphore_findings{` + pod + `,code="Leftovers",level="warning",cluster=""} 2+0x40`}, true},
		{"with an alert of its own", []string{`semaphore_findings{` + pod +
			`,code="Retained",level="warning",cluster="c2"} 2+0x40`}, false},
	},
	"SemaphoreKeyFileProblem": {
		{"damaged", []string{`semaphore_agent_key_file_problem{` + pod + `,device="wireguard.c2"} 1+0x40`}, true},
		{"whole", []string{`semaphore_agent_key_file_problem{` + pod + `,device="wireguard.c2"} 0+0x40`}, false},
	},
	"SemaphoreCertificateExpiresSoon": {
		{"20 days of a year", certificate(20, 365), true},
		{"40 days of a year", certificate(40, 365), false},
		{"20 days of a month", certificate(20, 30), false},
	},
	"SemaphoreCertificateExpires": {
		{"3 days of a year", certificate(3, 365), true},
		{"expired", certificate(-1, 365), true},
		{"3 days of a week", certificate(3, 7), false},
		{"half an hour of an hour", []string{`semaphore_certificate_not_before_timestamp_seconds{` + pod +
			`,type="own",cluster="c1"} 0+0x40`, `semaphore_certificate_not_after_timestamp_seconds{` + pod +
			`,type="own",cluster="c1"} 3600+0x40`}, false},
	},
	"SemaphoreRemoteAddressesOutsideNodes": {
		{"some", []string{leads, `semaphore_exporter_ips_outside_node_prefixes{` + pod + `} 3+0x40`}, true},
		{"none", []string{leads, `semaphore_exporter_ips_outside_node_prefixes{` + pod + `} 0+0x40`}, false},
	},
}

// certificate is one that is valid for some days more, of a number in all.
func certificate(left, all int) []string {
	series := func(edge string, days int) string {
		return fmt.Sprintf(`semaphore_certificate_not_%s_timestamp_seconds{%s,type="own",cluster="c1"} %d+0x40`, edge, pod,
			days*86400)
	}
	return []string{series("before", left-all), series("after", left)}
}

func bucket(le string, each int) string {
	return `semaphore_broker_propagation_seconds_bucket{` + pod + `,cluster="c2",kind="service",le="` + le + `"} 0+` +
		string(rune('0'+each)) + `x40`
}

// severalClusters is what docs/alerts.md says for a Prometheus that has several own clusters.
const severalClusters = "sed 's/(namespace,/(LABEL, namespace,/g' rules.yaml"

// groups is a file of the rules, as Prometheus loads it; with a label, as severalClusters changes them.
func groups(t *testing.T, label string) string {
	t.Helper()
	data, err := os.ReadFile("../../deploy/features/alerts/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if label != "" {
		data = bytes.ReplaceAll(data, []byte("(namespace,"), []byte("("+label+", namespace,"))
	}
	var object struct{ Spec any }
	if err := yaml.Unmarshal(data, &object); err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(object.Spec)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// fired are the alerts that fire at any time of what was recorded, each with its first summary.
func fired(t *testing.T, file string, series []string) map[string]string {
	t.Helper()
	return firedIn(t, file, series, 0, 20*time.Minute)
}

// firedIn are those that fire between two times.
func firedIn(t *testing.T, file string, series []string, from, to time.Duration) map[string]string {
	t.Helper()
	suite, err := promqltest.NewLazyLoader("load 30s\n  "+strings.Join(series, "\n  ")+"\n", promqltest.LazyLoaderOpts{})
	if err != nil {
		t.Fatal(err)
	}
	defer suite.Close()
	manager := prometheus.NewManager(&prometheus.ManagerOptions{
		QueryFunc: prometheus.EngineQueryFunc(suite.QueryEngine(), suite.Storage()), Appendable: suite.Storage(),
		Context:    context.Background(),
		NotifyFunc: func(context.Context, string, ...*prometheus.Alert) {}, Logger: promslog.NewNopLogger(),
	})
	all, errs := manager.LoadGroups(seconds*time.Second, labels.EmptyLabels(), "", nil, false, file)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	out := map[string]string{}
	for at := time.Unix(0, 0).UTC(); at.Before(time.Unix(0, 0).Add(to)); at = at.Add(seconds * time.Second) {
		suite.WithSamplesTill(at, func(err error) {
			if err != nil {
				t.Fatal(err)
			}
			for _, group := range all {
				group.Eval(suite.Context(), at)
				for _, r := range group.Rules() {
					if r.LastError() != nil {
						t.Fatalf("%s: %v", r.Name(), r.LastError())
					}
					alert, ok := r.(*prometheus.AlertingRule)
					if !ok {
						continue
					}
					alert.SetRestored(true)
					for _, active := range alert.ActiveAlerts() {
						if active.State == prometheus.StateFiring && at.Sub(time.Unix(0, 0)) >= from && out[r.Name()] == "" {
							out[r.Name()] = active.Annotations.Get("summary")
						}
					}
				}
			}
		})
	}
	return out
}

// TestAlerts: each alert fires on what it is for, and no other does; it is quiet otherwise.
func TestAlerts(t *testing.T) {
	file := groups(t, "")
	known := map[string]bool{}
	all, errs := prometheus.NewManager(&prometheus.ManagerOptions{Logger: promslog.NewNopLogger()}).LoadGroups(time.Second,
		labels.EmptyLabels(), "", nil, false, file)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for _, group := range all {
		for _, r := range group.Rules() {
			known[r.Name()] = true
			fires, quiet := 0, 0
			for _, c := range cases[r.Name()] {
				if c.fires {
					fires++
				} else {
					quiet++
				}
			}
			if fires == 0 || quiet == 0 {
				t.Errorf("%s: %d cases in which it fires, %d in which it is quiet; want one of each", r.Name(), fires, quiet)
			}
		}
	}
	for alert, list := range cases {
		if !known[alert] {
			t.Errorf("there is no alert %s", alert)
		}
		for _, c := range list {
			t.Run(alert+"/"+c.name, func(t *testing.T) {
				got := fired(t, file, c.series)
				summary, fires := got[alert]
				if fires != c.fires {
					t.Errorf("fires: %t, want %t", fires, c.fires)
				}
				if strings.Contains(summary, "<error") { // in its template
					t.Errorf("summary %q", summary)
				}
				delete(got, alert)
				if len(got) > 0 {
					t.Errorf("besides fire %v", got)
				}
			})
		}
	}
}

// TestNoLeaderResolves: without a pod SemaphoreNoLeader fires for an hour, as docs/alerts.md says.
func TestNoLeaderResolves(t *testing.T) {
	page, err := os.ReadFile("../../docs/alerts.md")
	if err != nil || !strings.Contains(string(page), "It resolves an hour after the last pod has ended") {
		t.Errorf("docs/alerts.md does not say so: %v", err)
	}
	file, ended := groups(t, ""), []string{`semaphore_leader{` + pod + `,container="broker"} 1+0x4 stale`}
	if got := firedIn(t, file, ended, 50*time.Minute, time.Hour); got["SemaphoreNoLeader"] == "" {
		t.Errorf("at the end of the hour fire %v", got)
	}
	if got := firedIn(t, file, ended, 65*time.Minute, 70*time.Minute); len(got) > 0 {
		t.Errorf("after an hour fire %v", got)
	}
}

// TestSeveralClusters: the documented change of the rules keeps the leaders of several own clusters apart.
func TestSeveralClusters(t *testing.T) {
	page, err := os.ReadFile("../../docs/alerts.md")
	if err != nil || !strings.Contains(string(page), severalClusters) {
		t.Errorf("docs/alerts.md lacks %q: %v", severalClusters, err)
	}
	of := func(site, series string) string { return strings.Replace(series, "{", `{site="`+site+`",`, 1) }
	file := groups(t, "site")
	if got := fired(t, file, []string{of("a", leads), of("b", leads)}); len(got) > 0 {
		t.Errorf("with a leader in each of two clusters fire %v", got)
	}
	if got := fired(t, file, []string{of("a", leads), of("b", standsBy)}); len(got) != 1 ||
		got["SemaphoreNoLeader"] == "" {
		t.Errorf("with a leader in one of two clusters fire %v", got)
	}
}
