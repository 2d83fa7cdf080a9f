package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/test/bench/figure"
	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// Bounds of the times of an export without mcs.settle, relative to those of direct writes: as in test/bench.
const maxOfDirectP50, maxOfDirectP99 = 2.5, 3

// mcsSettle is the default of mcs.settle.
const mcsSettle = 1500 * time.Millisecond

// BenchmarkFirstAnswer measures a ServiceExport in c2, from the answer of its apiserver until c1 has the ServiceImport
// with its IP, and until a pod of c1 has the first answer of a pod of c2. The pod asks for the name in clusterset.local
// until it has an IP, and sends one request to it. By turns, the same objects are written directly in c1, with the same
// wait between the Service and the ServiceImport: connections that begin before kube-proxy knows an IP hang. The times
// are without that wait. Exports and direct writes begin one after the other, twice a second.
//
// A request that is sent as soon as the name has an IP must be answered, unless those after direct writes are not.
func BenchmarkFirstAnswer(b *testing.B) {
	ctx := needsBed(b)
	const turns, every = 60, 500 * time.Millisecond
	s := clusters(ctx, b, testbed.Options{Clusters: []testbed.ClusterSpec{{Name: "c1", Nodes: 1}, {Name: "c2", Nodes: 1}}})
	m := newMCSBed(ctx, b, s)
	s.in.MCS = true
	must(b, s.in.Install(ctx, s.progress))
	must(b, s.c2.ApplyYAML(ctx, shopNamespace+echoes{name: "echo"}.yaml()))
	must(b, s.c1.ApplyYAML(ctx, shopNamespace+requestPod))
	ready(ctx, b, s.c2, "deployment/echo")
	ready(ctx, b, s.c1, "pod/request")
	request := testkit.Value(s.c1.Pod(ctx, "shop", "request"))(b)
	server := testkit.Value(pod(ctx, s.c2, "shop", "app=echo"))(b)
	dns := testkit.Value(s.c1.Client.CoreV1().Services("kube-system").List(ctx,
		metav1.ListOptions{LabelSelector: "k8s-app=kube-dns"}))(b)
	if len(dns.Items) != 1 {
		b.Fatalf("%d Services of DNS", len(dns.Items))
	}
	c := &answerClient{pod: request, dns: net.JoinHostPort(dns.Items[0].Spec.ClusterIP, "53")}

	service := func(name string, selector map[string]string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Selector: selector,
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}}}}
	}
	for i := range turns + 1 {
		testkit.Value(s.c2.Client.CoreV1().Services("shop").Create(ctx, service(fmt.Sprint("export-", i),
			map[string]string{"app": "echo"}), metav1.CreateOptions{}))(b)
	}
	through := func(i int) (begun time.Time, err error) {
		_, err = m.exports[s.c2].Create(ctx, &mcsv1beta1.ServiceExport{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("export-", i)}})
		return time.Now(), err
	}
	direct := func(i int) (begun time.Time, err error) {
		begun = time.Now()
		name := fmt.Sprint("direct-", i)
		made, err := s.c1.Client.CoreV1().Services("shop").Create(ctx, service(name, nil), metav1.CreateOptions{})
		if err != nil {
			return begun, err
		}
		if _, err := s.c1.Client.DiscoveryV1().EndpointSlices("shop").Create(ctx, &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080)}},
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{server.Status.PodIP}}},
		}, metav1.CreateOptions{}); err != nil {
			return begun, err
		}
		time.Sleep(mcsSettle)
		_, err = m.imports[s.c1].Create(ctx, &mcsv1beta1.ServiceImport{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
			Spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.ClusterSetIP, IPs: made.Spec.ClusterIPs,
				Ports: []mcsv1beta1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}}}})
		return begun, err
	}
	// once measures one export, or one direct write.
	once := func(name string, begin func() (time.Time, error)) (t firstAnswer, err error) {
		var g errgroup.Group
		var imported, answered time.Time
		g.Go(func() (err error) {
			imported, err = m.importedAt(ctx, s.c1, name)
			return err
		})
		g.Go(func() (err error) {
			answered, t.failed, err = c.answered(ctx, name+".shop.svc."+clusterset, server.Name)
			return err
		})
		begun, err := begin()
		err = errors.Join(err, g.Wait())
		t.imported, t.answered = imported.Sub(begun)-mcsSettle, answered.Sub(begun)-mcsSettle
		return t, err
	}
	testkit.Value(once(fmt.Sprint("export-", turns), func() (time.Time, error) { return through(turns) }))(b)
	for b.Loop() {
		var mu sync.Mutex
		var exports, writes []firstAnswer
		var g errgroup.Group
		for i := range turns {
			for _, turn := range []struct {
				name  string
				begin func(int) (time.Time, error)
				all   *[]firstAnswer
			}{{"export", through, &exports}, {"direct", direct, &writes}} {
				g.Go(func() error {
					t, err := once(fmt.Sprint(turn.name, "-", i), func() (time.Time, error) { return turn.begin(i) })
					mu.Lock()
					defer mu.Unlock()
					*turn.all = append(*turn.all, t)
					return err
				})
				time.Sleep(every)
			}
		}
		must(b, g.Wait())
		var failed, failedDirect float64
		for i, t := range exports {
			failed, failedDirect = failed+float64(t.failed), failedDirect+float64(writes[i].failed)
		}
		figure.Report(b, "unanswered-requests", failed).Floor(failedDirect).AtMost(failedDirect)
		for unit, of := range map[string]func(firstAnswer) time.Duration{
			"import": func(t firstAnswer) time.Duration { return t.imported },
			"answer": func(t firstAnswer) time.Duration { return t.answered },
		} {
			p50, p99 := quantiles(exports, of)
			floor50, floor99 := quantiles(writes, of)
			figure.Report(b, unit+"-p50-ms", p50).Floor(floor50).AtMostTimesFloor(maxOfDirectP50)
			figure.Report(b, unit+"-p99-ms", p99).Floor(floor99).AtMostTimesFloor(maxOfDirectP99)
		}
	}
	figure.WithoutTime(b)
}

// firstAnswer has the times of one export, and how many requests to the IP failed before the answer.
type firstAnswer struct {
	imported, answered time.Duration
	failed             int
}

// quantiles returns the median and the 99th percentile, in milliseconds.
func quantiles(all []firstAnswer, of func(firstAnswer) time.Duration) (p50, p99 float64) {
	var times []time.Duration
	for _, t := range all {
		times = append(times, of(t))
	}
	median, highest := figure.Quantiles(times)
	return float64(median.Microseconds()) / 1000, float64(highest.Microseconds()) / 1000
}

// importedAt returns when a watch has the ServiceImport with an IP.
func (b *mcsBed) importedAt(ctx context.Context, c *testbed.Cluster, name string) (time.Time, error) {
	w, err := b.imports[c].Follow("", nil).WatchFuncWithContext(ctx,
		metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return time.Time{}, err
	}
	defer w.Stop()
	for {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				return time.Time{}, fmt.Errorf("the watch of the ServiceImport %s ended", name)
			}
			if i, ok := e.Object.(*mcsv1beta1.ServiceImport); ok && i.Name == name && len(i.Spec.IPs) > 0 {
				return time.Now(), nil
			}
		case <-time.After(patience):
			return time.Time{}, fmt.Errorf("no ServiceImport %s within %s", name, patience)
		}
	}
}

// answerClient sends requests from a pod.
type answerClient struct {
	pod *testbed.Pod
	dns string
}

// answered resolves a name until it has an IP and sends requests to it until one is answered by the server.
func (c *answerClient) answered(ctx context.Context, name, server string) (at time.Time, failed int, err error) {
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return c.pod.Netns.DialContext(ctx, network, c.dns)
	}}
	client := &http.Client{Timeout: 2 * time.Second,
		Transport: &http.Transport{DialContext: c.pod.Netns.DialContext, DisableKeepAlives: true}}
	for end := time.Now().Add(patience); ; {
		var ips []net.IP
		if ips, err = resolver.LookupIP(ctx, "ip4", name+"."); err == nil {
			var body string
			if body, err = get(ctx, client, "http://"+net.JoinHostPort(ips[0].String(), "80")+"/"); err == nil {
				if !strings.Contains(body, server) {
					return at, failed, fmt.Errorf("%s: the answer is %q", name, body)
				}
				return time.Now(), failed, nil
			}
			failed++
		}
		if time.Now().After(end) {
			return at, failed, fmt.Errorf("%s: no answer within %s: %w", name, patience, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func get(ctx context.Context, client *http.Client, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}
