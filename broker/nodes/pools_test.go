package nodes

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/broker/apply"
	"github.com/kube-semaphore/semaphore/broker/report"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/described"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestPools: the IPPools of the remotes' pod subnets, in each group that Calico serves them in.
func TestPools(t *testing.T) {
	for _, gv := range []schema.GroupVersion{kubetest.CalicoCRD, {Group: "projectcalico.org", Version: "v3"}} {
		t.Run(gv.String(), func(t *testing.T) { testPools(t, gv) })
	}
}

// writeCounter counts requests that change something, and keeps the bodies of Events.
type writeCounter struct {
	mu     sync.Mutex
	lines  []string
	events int
}

func (w *writeCounter) RoundTrip(next http.RoundTripper) http.RoundTripper {
	return kubetest.RoundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodGet {
			w.mu.Lock()
			if strings.Contains(r.URL.Path, "/events") {
				w.events++
			} else {
				w.lines = append(w.lines, r.Method+" "+r.URL.Path)
			}
			w.mu.Unlock()
		}
		return next.RoundTrip(r)
	})
}

func testPools(t *testing.T, gv schema.GroupVersion) {
	admin := kubetest.Start(t)
	kubetest.InstallCalico(t, admin, gv, "globalnetworksets", "ippools")
	calico, err := kube.Calico(admin)
	if err != nil || calico.GroupVersion != gv {
		t.Fatal(calico, err)
	}
	kubetest.Namespace(t, kubernetes.NewForConfigOrDie(admin), "semaphore")
	foreign := testkit.Value(calico.IPPools().Create(t.Context(),
		&calicov3.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "mine"},
			Spec: calicov3.IPPoolSpec{CIDR: "10.3.128.0/17", NATOutgoing: true, NodeSelector: "all()", BlockSize: 26}}))(t)
	counted := &writeCounter{}
	cfg := rest.CopyConfig(admin)
	cfg.Wrap(counted.RoundTrip)

	there := func() (string, []calicov3.IPPool) {
		t.Helper()
		list := testkit.Value(cache.ToListerWatcherWithContext(calico.IPPools().ListWatch("")).ListWithContext(t.Context(),
			metav1.ListOptions{}))(t)
		items := list.(*calicov3.IPPoolList).Items
		var out []string
		for _, p := range items {
			out = append(out, p.Name)
		}
		slices.Sort(out)
		return strings.Join(out, " "), items
	}
	run := func(remotes string) (pools *apply.Objects[*calicov3.IPPool], stop func()) {
		t.Helper()
		broker := testkit.Value(described.Broker([]byte("cluster: c1\nlocalSubnets: [10.1.0.0/16]\nremotes: [" +
			remotes + "]\n")))(t)
		registry := prometheus.NewRegistry()
		metrics := apply.NewMetrics(registry)
		events := report.NewEvents(kubernetes.NewForConfigOrDie(cfg), "semaphore", nil, registry,
			slog.New(slog.DiscardHandler))
		desired := Pools(func() *config.Broker { return broker })
		pools = apply.Pools(apply.NewCalico(cfg, slog.New(slog.DiscardHandler)), desired,
			apply.Options{
				Metrics: metrics, Recorder: debug.NewRecorder("broker", "c1", ""), Events: events,
				Log: slog.New(slog.DiscardHandler), Workers: 2,
			})
		testkit.Run(t, events.Run)
		return pools, testkit.Run(t, pools.Run)
	}
	are := func(what, want string) {
		t.Helper()
		eventually(t, what, func() (bool, string) { got, _ := there(); return got == want, got })
	}
	const c2 = "{name: c2, podSubnets: [10.2.0.0/16, 'fd00:2::/48', 10.20.0.0/28], nodeSubnets: [192.0.2.0/24]}"
	const c3 = "{name: c3, podSubnets: [10.3.0.0/16], nodeSubnets: [192.0.2.0/24], wireguard: {listenPort: 51821}}"

	pools, stop := run(c2 + ", " + c3)
	are("the pools of what nobody has a pool of",
		"mine semaphore-c2-10-2-0-0-16 semaphore-c2-10-20-0-0-28 semaphore-c2-fd00-2---48")
	eventually(t, "the other is reported", func() (bool, string) {
		p := finding.Texts(pools.Findings())
		return len(p) == 1 && strings.Contains(p[0],
				"there is a ippool mine that semaphore did not create: its 10.3.128.0/17 overlaps 10.3.0.0/16 of the cluster c3"),
			fmt.Sprint(p)
	})
	eventually(t, "by an Event, too", func() (bool, string) {
		counted.mu.Lock()
		defer counted.mu.Unlock()
		return counted.events > 0, "none"
	})
	_, items := there()
	for _, p := range items {
		if p.Name == "mine" {
			if p.ResourceVersion != foreign.ResourceVersion {
				t.Errorf("somebody's pool was changed: %+v", p)
			}
			continue
		}
		block := map[string]int{"10.2.0.0/16": 26, "fd00:2::/48": 122, "10.20.0.0/28": 28}[p.Spec.CIDR]
		if s := p.Spec; !s.Disabled || !s.DisableBGPExport || s.NATOutgoing || s.BlockSize != block ||
			s.IPIPMode != calicov3.IPIPModeNever || s.VXLANMode != calicov3.VXLANModeNever {
			t.Errorf("pool %s: %+v", p.Name, p.Spec)
		}
	}
	testkit.Must(t, calico.IPPools().Delete(t.Context(), "mine", foreign.UID, ""))
	const all = "semaphore-c2-10-2-0-0-16 semaphore-c2-10-20-0-0-28 semaphore-c2-fd00-2---48 semaphore-c3-10-3-0-0-16"
	are("the pool that was in the way is gone, and ours is there", all)
	eventually(t, "all is well", func() (bool, string) {
		p := finding.Texts(pools.Findings())
		return len(p) == 0,
			fmt.Sprint(p)
	})
	stop()

	// A restart writes nothing.
	counted.mu.Lock()
	counted.lines = nil
	counted.mu.Unlock()
	pools, stop = run(c2 + ", " + c3)
	eventually(t, "synced", func() (bool, string) { return pools.Synced(), "" })
	time.Sleep(300 * time.Millisecond)
	are("as before", all)
	stop()
	counted.mu.Lock()
	if len(counted.lines) > 0 {
		t.Errorf("a restart wrote %q", counted.lines)
	}
	counted.mu.Unlock()

	// A pool that an older broker made without disableBGPExport is brought up to date.
	old := testkit.Value(calico.IPPools().Get(t.Context(), "semaphore-c2-10-2-0-0-16"))(t)
	old.Spec.DisableBGPExport = false
	testkit.Value(calico.IPPools().Update(t.Context(), old))(t)
	_, stop = run(c2 + ", " + c3)
	eventually(t, "its route is exported to no BGP peer", func() (bool, string) {
		p, err := calico.IPPools().Get(t.Context(), old.Name)
		return err == nil && p.UID == old.UID && p.Spec.DisableBGPExport, fmt.Sprint(p.Spec, err)
	})
	stop()

	// A remote that is taken out of the configuration, and a subnet; somebody's pool that only looks like ours stays.
	testkit.Value(calico.IPPools().Create(t.Context(),
		&calicov3.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "semaphore-c3-10-9-0-0-16"},
			Spec: calicov3.IPPoolSpec{CIDR: "10.9.0.0/16", NodeSelector: "all()", BlockSize: 26}}))(t)
	run("{name: c2, podSubnets: [10.2.0.0/16, 'fd00:2::/48'], nodeSubnets: [192.0.2.0/24]}")
	are("those of what is configured", "semaphore-c2-10-2-0-0-16 semaphore-c2-fd00-2---48 semaphore-c3-10-9-0-0-16")
}
