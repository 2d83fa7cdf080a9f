package bench

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// setsWorld is realBroker with an observer of the sets that it writes.
type setsWorld struct {
	*realBroker
	sightings
	// seen has when each IP was first in a set, by another client's watch, and gone when it was no longer in any.
	seen map[string]time.Time
	gone map[string]time.Time
	last map[string][]string // nets by set
}

func newSetsWorld(b *testing.B, maxSize int) *setsWorld {
	c1 := kubetest.Start(b)
	kubetest.InstallCalico(b, c1, kubetest.CalicoCRD, "globalnetworksets")
	w := &setsWorld{
		realBroker: newRealBroker(b, c1, "policy", func(cfg *config.Broker) { cfg.Sets.MaxSize = maxSize }),
		sightings:  newSightings(), seen: map[string]time.Time{}, gone: map[string]time.Time{}, last: map[string][]string{},
	}
	w.watch()
	return w
}

// watch follows the sets, as Felix does.
func (w *setsWorld) watch() {
	client, err := kube.Calico(w.c1)
	must(w.b, err)
	informer := cache.NewSharedIndexInformer(client.GlobalNetworkSets().ListWatch(""),
		&calicov3.GlobalNetworkSet{}, 0, nil)
	saw := func(set *calicov3.GlobalNetworkSet, nets []string) {
		now := time.Now()
		w.mu.Lock()
		defer w.mu.Unlock()
		had := map[string]bool{}
		for _, n := range w.last[set.Name] {
			had[n] = true
		}
		for _, n := range nets {
			if !had[n] {
				if _, ok := w.seen[n]; !ok {
					w.seen[n] = now
				}
			}
			delete(had, n)
		}
		for n := range had {
			w.gone[n] = now
		}
		w.last[set.Name] = nets
		w.tell()
	}
	is := func(object any) {
		set := object.(*calicov3.GlobalNetworkSet)
		saw(set, set.Spec.Nets)
	}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: is, UpdateFunc: func(_, o any) { is(o) },
		DeleteFunc: func(o any) {
			if set, ok := o.(*calicov3.GlobalNetworkSet); ok {
				saw(set, nil)
			}
		}})
	must(w.b, err)
	w.run(func(ctx context.Context) error {
		informer.RunWithContext(ctx)
		return nil
	})
}

// await returns when n IPs were seen in total.
func (w *setsWorld) await(n int) { w.awaitIn(w.seen, n) }

// awaitIn returns when one of the maps has n IPs.
func (w *setsWorld) awaitIn(ips map[string]time.Time, n int) {
	w.b.Helper()
	w.until(w.b, fmt.Sprintf("%d IPs", n), func() (int, bool) { return len(ips), len(ips) >= n })
}

// podsWorld is setsWorld with cluster c2, which has a real apiserver and the whole exporter.
type podsWorld struct {
	*setsWorld
	kube kubernetes.Interface
	made int
}

func newPodsWorld(b *testing.B) *podsWorld {
	c2 := kubetest.Start(b)
	w := &podsWorld{setsWorld: newSetsWorld(b, 1000), kube: kubernetes.NewForConfigOrDie(kube.Protobuf(c2))}
	w.export(c2, "policy")
	kubetest.Namespace(b, w.kube, "shop")
	// Everything is connected once one pod has arrived.
	pods := w.pods(1, 1)
	w.ready(pods[0])
	w.await(1)
	return w
}

// pod is a pod whose IP is not set yet.
type pod struct{ name, ip string }

func (p pod) net() string { return p.ip + "/32" }

// pods creates pods without IPs in a number of sets.
func (w *podsWorld) pods(n, sets int) []pod {
	first := w.made
	return w.podsOf(n, func(i int) string { return fmt.Sprintf("set-%d-%d", first, i%sets) })
}

// podsOf creates pods without IPs, each in a set.
func (w *podsWorld) podsOf(n int, set func(i int) string) []pod {
	w.b.Helper()
	first := w.made
	w.made += n
	all := make([]pod, n)
	var g errgroup.Group
	g.SetLimit(16)
	for i := range all {
		k := first + i
		all[i] = pod{fmt.Sprint("web-", k), netip.AddrFrom4([4]byte{10, 2, byte(k >> 8), byte(k)}).String()}
		g.Go(func() error {
			_, err := w.kube.CoreV1().Pods("shop").Create(w.b.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: all[i].name,
					Labels: map[string]string{naming.DefaultLabelDomain + "/name": set(i)}},
				Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "web", Image: "web"}}},
			}, metav1.CreateOptions{})
			return err
		})
	}
	must(w.b, g.Wait())
	return all
}

// ready sets the IP of a pod, and returns when the apiserver answered.
func (w *podsWorld) ready(p pod) time.Time {
	patch := fmt.Sprintf(`{"status":{"phase":"Running","podIP":%[1]q,"podIPs":[{"ip":%[1]q}]}}`, p.ip)
	testkit.Value(w.kube.CoreV1().Pods("shop").Patch(w.b.Context(), p.name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{}, "status"))(w.b)
	return time.Now()
}

// spread has how long IPs took from the apiserver's answer until they were seen, or gone, and the duration of the load.
type spread struct{ p50, p99, late, load time.Duration }

func (w *podsWorld) spread(answered, reported map[string]time.Time) spread {
	var took []time.Duration
	var firstAnswer, lastAnswer, lastReported time.Time
	w.mu.Lock()
	for n, at := range answered {
		if firstAnswer.IsZero() || at.Before(firstAnswer) {
			firstAnswer = at
		}
		took = append(took, reported[n].Sub(at))
		lastAnswer, lastReported = later(lastAnswer, at), later(lastReported, reported[n])
	}
	w.mu.Unlock()
	p50, p99 := figure.Quantiles(took)
	return spread{p50, p99, lastReported.Sub(lastAnswer), lastAnswer.Sub(firstAnswer)}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// report reports how long IPs took until they were seen in a set: by the watch, by the direct writes, and by the
// broker's own histogram.
func (w *podsWorld) report(answered, direct map[string]time.Time, own propagation) (through, beside spread) {
	through, beside = w.spread(answered, w.seen), w.spread(direct, w.seen)
	histogram := w.propagation("globalnetworkset").since(own)
	figure.Report(w.b, "own-p50-ms", histogram.milliseconds(0.5))
	figure.Report(w.b, "own-p99-ms", histogram.milliseconds(0.99))
	figure.WithoutTime(w.b) // the benchmark generates the load
	return through, beside
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Bounds at an ordinary rate: how much longer a change takes than a direct write, in the median and at the 99th
// percentile.
const (
	maxOfDirect    = 1.5
	maxOfDirectP99 = 3
	// The apiserver counts as the bottleneck if a direct write beside the changes takes this many times as long as on
	// an idle machine. Then changes of one set wait for each other, because a set is one object: on average, a change
	// waits for half of a write before its own can begin, and the broker pauses the set for as long as that write took.
	// From busy changes a second on, the bound is therefore a different one.
	bottleneck              = 3
	busy                    = 200
	maxOfDirectAtBottleneck = 3
)

// storeEvery is the interval at which a broker reads the revision of its cluster's store; see kube.FollowStore. With
// only policy enabled it lists one set.
const storeEvery = 10 * time.Second

// noReads fails if there were reads since a time, other than those of the store's revision.
func noReads(b *testing.B, reads int, since time.Time) {
	b.Helper()
	figure.Report(b, "reads", float64(reads)).AtMost(float64(1 + time.Since(since)/storeEvery))
}

// BenchmarkSetsTrickle measures pods of one or several sets that get their IPs one after the other: from the answer of
// the pod's apiserver until the watch of the other cluster has the IP in the set. At the same moments, up to 20 direct
// writes a second add an address to a set that has no other write in flight, measured from the request to the watch.
// Each change is at most one write, and nothing is read.
func BenchmarkSetsTrickle(b *testing.B) {
	for _, c := range []struct{ pods, perSecond, sets int }{{20, 5, 1}, {100, 20, 1}, {300, 50, 1}, {1000, 200, 10},
		{1000, 200, 4}} {
		b.Run(fmt.Sprintf("%d-pods-at-%d-a-second-of-%d-sets", c.pods, c.perSecond, c.sets), func(b *testing.B) {
			w := newPodsWorld(b)
			direct := w.directly()
			answered := map[string]time.Time{}
			changes, total := 0, 1
			idle := w.idle(direct, &total)
			began := time.Now()
			reads, writes, _ := w.requests("globalnetworksets")
			own := w.propagation("globalnetworkset")
			written := map[string]time.Time{}
			for b.Loop() {
				pods := w.pods(c.pods, c.sets)
				gap, nth := time.Second/time.Duration(c.perSecond), max(1, c.perSecond/20)
				var mu sync.Mutex
				var beside sync.WaitGroup
				begin := time.Now()
				times := make([]time.Time, len(pods))
				all(b, 16, len(pods), func(i int) {
					time.Sleep(time.Until(begin.Add(time.Duration(i) * gap)))
					times[i] = w.ready(pods[i])
					if i%nth == 0 {
						beside.Go(func() {
							at, net := direct()
							mu.Lock()
							defer mu.Unlock()
							written[net] = at
						})
					}
				})
				beside.Wait()
				for i, p := range pods {
					answered[p.net()] = times[i]
				}
				changes += len(pods)
				w.await(total + changes + len(written))
			}
			moreReads, moreWrites, _ := w.requests("globalnetworksets")
			through, beside := w.report(answered, written, own)
			most := float64(maxOfDirect)
			if c.perSecond >= busy && beside.p50 > bottleneck*idle {
				most = maxOfDirectAtBottleneck
			}
			figure.Report(b, "direct-idle-p50-ms", milliseconds(idle))
			figure.Report(b, "late-ms", milliseconds(through.late)).Floor(milliseconds(beside.p99))
			figure.Report(b, "p50-ms", milliseconds(through.p50)).Floor(milliseconds(beside.p50)).AtMostTimesFloor(most)
			figure.Report(b, "p99-ms",
				milliseconds(through.p99)).Floor(milliseconds(beside.p99)).AtMostTimesFloor(maxOfDirectP99)
			figure.Report(b, "writes/change", float64(moreWrites-writes-len(written))/float64(changes)).Floor(1).AtMost(1)
			noReads(b, moreReads-reads, began)
		})
	}
}

// idle returns the median time of a direct write while nothing else happens. It adds the number of written addresses to
// total.
func (w *podsWorld) idle(direct func() (time.Time, string), total *int) time.Duration {
	var took []time.Duration
	for range 21 {
		at, net := direct()
		*total++
		w.await(*total)
		w.mu.Lock()
		took = append(took, w.seen[net].Sub(at))
		w.mu.Unlock()
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// beside makes a direct write at an interval, and records when each began, until stop is called.
func (w *podsWorld) beside(direct func() (time.Time, string), written map[string]time.Time,
	every time.Duration) (stop func()) {
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			at, net := direct()
			written[net] = at
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
	return func() { close(done); <-stopped }
}

// directly returns a function that adds one more address to a set that the broker does not write. The function returns
// the address, and when it sent the request. It may be called from several goroutines.
func (w *podsWorld) directly() func() (time.Time, string) {
	const sets = 16
	client := testkit.Value(kube.Calico(w.c1))(w.b)
	idle := make(chan *calicov3.GlobalNetworkSet, sets)
	for i := range sets {
		set := testkit.Value(client.GlobalNetworkSets().Create(w.b.Context(),
			&calicov3.GlobalNetworkSet{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("direct-", i)}}))(w.b)
		idle <- set
	}
	var n atomic.Int64
	return func() (time.Time, string) {
		began := time.Now()
		set := <-idle
		i := n.Add(1)
		net := fmt.Sprintf("10.250.%d.%d/32", i>>8, i&255)
		set.Spec.Nets = append(set.Spec.Nets, net)
		set = testkit.Value(client.GlobalNetworkSets().Update(w.b.Context(), set))(w.b)
		idle <- set
		return began, net
	}
}

// maxBurstWrites is the largest number of writes of a set in a burst, and in each second of a burst that a slow
// apiserver stretches.
const maxBurstWrites = 12

// maxBurstWait is the time in milliseconds in which 99 of 100 addresses of a burst are in their sets, beside the wait
// for the apiserver.
const maxBurstWait = 250

// maxLate is how many milliseconds after its pod the last address of a burst may be in its set, without the time of its
// own write, for which the longest direct write counts.
const maxLate = 100

// BenchmarkSetsBurst measures pods that all get their IPs at once, from 16 workers, with a direct write every 50 ms.
func BenchmarkSetsBurst(b *testing.B) {
	for _, c := range []struct{ pods, sets int }{{500, 10}, {2000, 20}} {
		b.Run(fmt.Sprintf("%d-pods-of-%d-sets", c.pods, c.sets), func(b *testing.B) {
			w := newPodsWorld(b)
			direct := w.directly()
			answered, written := map[string]time.Time{}, map[string]time.Time{}
			sets, began := 0, time.Now()
			reads, writes, _ := w.requests("globalnetworksets")
			own := w.propagation("globalnetworkset")
			for b.Loop() {
				pods := w.pods(c.pods, c.sets)
				sets += c.sets
				times := make([]time.Time, len(pods))
				stop := w.beside(direct, written, 50*time.Millisecond)
				all(b, 16, len(pods), func(i int) { times[i] = w.ready(pods[i]) })
				stop()
				for i, p := range pods {
					answered[p.net()] = times[i]
				}
				w.await(1 + len(answered) + len(written))
			}
			moreReads, moreWrites, _ := w.requests("globalnetworksets")
			through, beside := w.report(answered, written, own)
			figure.Report(b, "p50-ms", milliseconds(through.p50)).Floor(milliseconds(beside.p50))
			figure.Report(b, "p99-ms", milliseconds(through.p99)).Floor(milliseconds(beside.p99)).AtMost(maxBurstWait +
				milliseconds(beside.p99))
			figure.Report(b, "load-s", through.load.Seconds())
			figure.Report(b, "writes/set",
				float64(moreWrites-writes-len(written))/float64(sets)).Floor(1).AtMost(maxBurstWrites * max(1,
				through.load.Seconds()))
			figure.Report(b, "late-ms", milliseconds(through.late)).Floor(milliseconds(beside.p99)).AtMost(maxLate +
				milliseconds(beside.p99))
			noReads(b, moreReads-reads, began)
		})
	}
}

// maxRolloutWrites is the largest number of writes for a rollout of 1,000 pods in 30 s; see
// docs/adr/0008-sets-in-parts.md.
const maxRolloutWrites = 420

// BenchmarkSetsRollout measures a set of 1,000 pods, each of which is replaced: a new pod gets its IP, then the old one
// is deleted.
func BenchmarkSetsRollout(b *testing.B) {
	const pods, workers = 1000, 16
	for _, c := range []struct {
		name  string
		every time.Duration
	}{{"at-once", 0}, {"33-a-second", 30 * time.Millisecond}} {
		b.Run(c.name, func(b *testing.B) {
			w := newPodsWorld(b)
			set := func(int) string { return "rollout" }
			old := w.podsOf(pods, set)
			all(b, workers, pods, func(i int) { w.ready(old[i]) })
			total := 1 + pods
			w.await(total)
			joined, left := map[string]time.Time{}, map[string]time.Time{}
			var took time.Duration
			n := 0
			_, writes, _ := w.requests("globalnetworksets")
			for b.Loop() {
				n++
				replacing := w.podsOf(pods, set)
				total += pods
				joins, leaves := make([]time.Time, pods), make([]time.Time, pods)
				begin := time.Now()
				all(b, workers, pods, func(i int) {
					time.Sleep(time.Until(begin.Add(time.Duration(i) * c.every)))
					joins[i] = w.ready(replacing[i])
					must(b, w.kube.CoreV1().Pods("shop").Delete(b.Context(), old[i].name,
						metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
					leaves[i] = time.Now()
				})
				took += time.Since(begin)
				for i := range pods {
					joined[replacing[i].net()], left[old[i].net()] = joins[i], leaves[i]
				}
				w.await(total)
				w.awaitIn(w.gone, n*pods)
				old = replacing
			}
			_, more, _ := w.requests("globalnetworksets")
			in, out := w.spread(joined, w.seen), w.spread(left, w.gone)
			figure.Report(b, "load-s", took.Seconds()/float64(n))
			perRollout := figure.Report(b, "writes", float64(more-writes)/float64(n))
			if c.every > 0 {
				perRollout.AtMost(maxRolloutWrites)
			}
			figure.Report(b, "late-ms", milliseconds(max(in.late, out.late)))
			figure.Report(b, "in-p50-ms", milliseconds(in.p50))
			figure.Report(b, "in-p99-ms", milliseconds(in.p99))
			figure.Report(b, "out-p50-ms", milliseconds(out.p50))
			figure.Report(b, "out-p99-ms", milliseconds(out.p99))
			figure.WithoutTime(b)
		})
	}
}

// all calls do n times, from a number of workers, in order.
func all(b *testing.B, workers, n int, do func(i int)) {
	var next atomic.Int64
	var g errgroup.Group
	for range workers {
		g.Go(func() error {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				do(int(i))
			}
			return nil
		})
	}
	must(b, g.Wait())
}
