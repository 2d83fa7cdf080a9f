package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/test/testbed"
)

// rolled returns a Deployment with the default strategy and its Service. Without preStop, a pod stops listening when
// its kubelet learns of the deletion, before kube-proxy has removed the endpoint.
func rolled(name, lifecycle string) string {
	return echoes{name: name, replicas: 8, grace: 10, lifecycle: lifecycle}.yaml() + fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: shop, labels: {mirror.semaphore.uw.io/mirror-service: "true"}}
spec:
  selector: {app: %[1]s}
  ports: [{name: http, port: 80, targetPort: http}]
`, name)
}

const (
	rolledMirror = "c2-shop-73736d-rolled"
	// steadyRate is the number of requests per second of each client.
	steadyRate = 25
	// steadyPatience is the timeout of one request.
	steadyPatience = 3 * time.Second
	// allRuns is the number of runs for which failures are compared. With fewer, it is chance at which point of
	// kube-proxy's sync interval a pod ends.
	allRuns = 10
	// maxOfAlone bounds the remote client's median request time to a Service whose pods are replaced, relative to a
	// Service without an update.
	maxOfAlone = 1.5
)

// tries are the requests of one client.
type tries struct {
	client *client
	url    string

	mu     sync.Mutex
	took   []time.Duration // of the answered requests
	failed []string
}

func (r *tries) once(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, steadyPatience)
	defer cancel()
	began := time.Now()
	_, err := r.client.ask(ctx, r.url)
	took := time.Since(began)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failed = append(r.failed, fmt.Sprintf("%s after %s: %v", began.Format("05.000"), took.Round(time.Millisecond), err))
		return
	}
	r.took = append(r.took, took)
}

func (r *tries) String() string {
	return fmt.Sprintf("%d answered, %s; %d failed %q",
		len(r.took), spread(r.took), len(r.failed), r.failed[:min(3, len(r.failed))])
}

// steadily makes all clients send requests at the same moments, independently of earlier results, until stop is called.
func steadily(ctx context.Context, t *testing.T, all ...*tries) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var requests, clock sync.WaitGroup
	clock.Go(func() {
		tick := time.NewTicker(time.Second / steadyRate)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for _, r := range all {
				requests.Go(func() { r.once(context.WithoutCancel(ctx)) })
			}
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		clock.Wait()
		requests.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// leavers records when endpoints stopped being ready.
type leavers struct {
	stop  func()
	ready map[string][]string  // addresses by slice
	left  map[string]time.Time // by address
}

// followLeavers watches the slices of a Service until stop is called. left can be read afterwards.
func followLeavers(ctx context.Context, t *testing.T, kube kubernetes.Interface, namespace, service string) *leavers {
	t.Helper()
	of := metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service}
	w, err := kube.DiscoveryV1().EndpointSlices(namespace).Watch(ctx, of)
	must(t, err)
	l, done := &leavers{ready: map[string][]string{}, left: map[string]time.Time{}}, make(chan struct{})
	l.stop = sync.OnceFunc(func() { w.Stop(); <-done })
	t.Cleanup(l.stop)
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			if s, ok := event.Object.(*discoveryv1.EndpointSlice); ok && event.Type != watch.Bookmark {
				l.saw(s, time.Now())
			}
		}
	}()
	return l
}

func (l *leavers) saw(s *discoveryv1.EndpointSlice, now time.Time) {
	before := l.ready[s.Name]
	l.ready[s.Name] = nil
	for _, e := range s.Endpoints {
		if ptr.Deref(e.Conditions.Ready, true) {
			l.ready[s.Name] = append(l.ready[s.Name], e.Addresses[0])
		}
	}
	for _, address := range before {
		if _, known := l.left[address]; !known && !slices.Contains(l.ready[s.Name], address) {
			l.left[address] = now
		}
	}
}

// syncs are the times at which the kube-proxy of a cluster's node had written its rules.
type syncs struct {
	stop func()
	at   []time.Time
}

func followSyncs(ctx context.Context, t *testing.T, c *testbed.Cluster) *syncs {
	ctx, cancel := context.WithCancel(ctx)
	s, done := &syncs{}, make(chan struct{})
	s.stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(s.stop)
	h := &http.Client{Transport: &http.Transport{DialContext: c.Nodes[0].Netns.DialContext}}
	go func() {
		defer close(done)
		defer h.CloseIdleConnections()
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			if at, err := lastSync(ctx, h); err == nil && (len(s.at) == 0 || at.After(s.at[len(s.at)-1])) {
				s.at = append(s.at, at)
			}
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	}()
	return s
}

func lastSync(ctx context.Context, h *http.Client) (time.Time, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:10249/metrics", nil)
	if err != nil {
		return time.Time{}, err
	}
	response, err := h.Do(request)
	if err != nil {
		return time.Time{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "kubeproxy_sync_proxy_rules_last_timestamp_seconds{") && strings.Contains(line, "IPv4") {
			seconds, err := strconv.ParseFloat(strings.Fields(line)[1], 64)
			return time.UnixMicro(int64(seconds * 1e6)), err
		}
	}
	return time.Time{}, err
}

// after returns the time from a moment until the rules were written next.
func (s *syncs) after(moment time.Time) time.Duration {
	for _, at := range s.at {
		if at.After(moment) {
			return at.Sub(moment)
		}
	}
	return 0
}

// rollout is the result of one replacement of all pods.
type rollout struct {
	local, remote *tries
	// The same clients send requests to a Service without an update at the same moments. Its failures are caused by the
	// machine.
	localAlone, remoteAlone *tries
	// lag is the delay from the terminating state in c2's slices until c1's slices have it.
	lag []time.Duration
}

// roll replaces all pods while a client in each cluster sends requests.
func (b *servicesBed) roll(ctx context.Context, t *testing.T) *rollout {
	t.Helper()
	r := &rollout{
		local:       &tries{client: b.clients[b.c2], url: "http://rolled.shop.svc.cluster.local/"},
		remote:      &tries{client: b.clients[b.c1], url: "http://rolled.shop.svc.cluster.c2/"},
		localAlone:  &tries{client: b.clients[b.c2], url: "http://alone.shop.svc.cluster.local/"},
		remoteAlone: &tries{client: b.clients[b.c1], url: "http://alone.shop.svc.cluster.c2/"},
	}
	before := b.addresses(ctx, t, "rolled")
	there := followLeavers(ctx, t, b.c2.Client, "shop", "rolled")
	here := followLeavers(ctx, t, b.c1.Client, Namespace, rolledMirror)
	thereSynced, hereSynced := followSyncs(ctx, t, b.c2), followSyncs(ctx, t, b.c1)
	stop := steadily(ctx, t, r.local, r.remote, r.localAlone, r.remoteAlone)
	began := time.Now()
	_, err := b.c2.Kubectl(ctx, nil, "-n", "shop", "rollout", "restart", "deployment/rolled")
	must(t, err)
	ready(ctx, t, b.c2, "deployment/rolled")
	// Continue until the last of the old pods is gone and kube-proxy has applied that.
	must(t, until(ctx, settle, func() error {
		now, err := pods(ctx, b.c2, "shop", "app=rolled")
		for _, p := range now {
			if before[p.Name] != "" {
				err = fmt.Errorf("%s is there still", p.Name)
			}
		}
		return err
	}))
	time.Sleep(proxySync)
	took := time.Since(began)
	stop()
	for _, f := range []func(){there.stop, here.stop, thereSynced.stop, hereSynced.stop} {
		f()
	}
	var inC2, inC1 []time.Duration
	for name, address := range before {
		first, ok := there.left[address]
		then, okThen := here.left[address]
		if !ok || !okThen {
			t.Errorf("%s (%s) was ready until the end in c2: %t, in c1: %t", name, address, !ok, !okThen)
			continue
		}
		r.lag = append(r.lag, then.Sub(first))
		inC2, inC1 = append(inC2, thereSynced.after(first)), append(inC1, hereSynced.after(then)+then.Sub(first))
	}
	t.Logf("replaced in %s. An endpoint that leaves c2's slice leaves c1's after %s, the rules of c2's kube-proxy "+
		"after %s, those of c1's after %s", took.Round(100*time.Millisecond), spread(r.lag), spread(inC2), spread(inC1))
	t.Logf("local:  %s", r.local)
	t.Logf("remote: %s", r.remote)
	t.Logf("of a Service that is left alone, local:  %s", r.localAlone)
	t.Logf("of a Service that is left alone, remote: %s", r.remoteAlone)
	return r
}

// compareRollouts replaces all pods of a Deployment with the default strategy, without and with preStop, while a client
// in each cluster sends requests. Over ten runs (ROLLOUTS=10 in the environment), the remote client must not have more
// failures than the local one, and its median request must not take longer than without an update. Failures of a
// Service without an update are subtracted from both. make test does not include it: fewer runs depend on chance, and
// ten take 40 minutes.
func (b *servicesBed) compareRollouts(ctx context.Context, t *testing.T, runs int) {
	deployed := func(name, lifecycle string) {
		t.Helper()
		must(t, b.c2.ApplyYAML(ctx, rolled(name, lifecycle)))
		ready(ctx, t, b.c2, "deployment/"+name)
		must(t, until(ctx, settle, func() error {
			_, err := b.clients[b.c1].ask(ctx, "http://"+name+".shop.svc.cluster.c2/")
			return err
		}))
	}
	deployed("alone", "")
	for _, variant := range []struct{ name, lifecycle string }{
		{"without preStop", ""}, {"with preStop", "preStop: {sleep: {seconds: 5}}"},
	} {
		t.Run(variant.name, func(t *testing.T) {
			deployed("rolled", variant.lifecycle)
			var lag, local, remote, alone []time.Duration
			var failedLocal, failedRemote, aloneLocal, aloneRemote int
			for range runs {
				r := b.roll(ctx, t)
				lag, local, remote = append(lag, r.lag...), append(local, r.local.took...), append(remote, r.remote.took...)
				alone = append(alone, r.remoteAlone.took...)
				failedLocal, failedRemote = failedLocal+len(r.local.failed), failedRemote+len(r.remote.failed)
				aloneLocal, aloneRemote = aloneLocal+len(r.localAlone.failed), aloneRemote+len(r.remoteAlone.failed)
			}
			t.Logf("%d runs: %d requests from the other cluster failed (%d of a Service that was left alone), and %d (%d) "+
				"from the own one; they took %s (%s of the one that was left alone), and %s; lag %s", runs, failedRemote,
				aloneRemote, failedLocal, aloneLocal, spread(remote), spread(alone), spread(local), spread(lag))
			if runs >= allRuns && median(remote) > maxOfAlone*median(alone) {
				t.Errorf("the median request from the other cluster took %s, and %s of a Service that was left alone",
					spread(remote), spread(alone))
			}
			if runs >= allRuns && failedRemote-aloneRemote > failedLocal-aloneLocal {
				t.Errorf("%d requests from the other cluster failed, and %d from the own one", failedRemote-aloneRemote,
					failedLocal-aloneLocal)
			}
		})
	}
}

// median returns the median in seconds.
func median(all []time.Duration) float64 {
	if len(all) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(all))[len(all)/2].Seconds()
}

// spread describes the distribution of times.
func spread(all []time.Duration) string {
	if len(all) == 0 {
		return "none"
	}
	all = slices.Sorted(slices.Values(all))
	at := func(share float64) time.Duration {
		return all[min(len(all)-1, int(share*float64(len(all))))].Round(100 * time.Microsecond)
	}
	return fmt.Sprintf("p50 %s p90 %s p99 %s", at(.5), at(.9), at(.99))
}
