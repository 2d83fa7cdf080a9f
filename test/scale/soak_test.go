package scale

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/bench/figure"
	"github.com/kube-semaphore/semaphore/test/testbed/proxy"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// The objects that live at a time in a soak, after which each new one ends the oldest.
const (
	soakServices, soakPods, soakNodes, soakAgents = 180, 300, 20, 20
	soakEndpoints                                 = 10
)

// soak is a hub and cluster c2, whose objects come and go.
type soak struct {
	*hub
	c2       kubernetes.Interface
	exporter *program
	proxy    *proxy.Proxy
	// made counts what has come so far.
	services, pods, remotes, agents, cuts atomic.Int64
}

// BenchmarkSoak has objects with ever new names come and go for as long as SOAK says: Services with slices, pods of
// sets, remotes, and agents on new nodes; keys of nodes change, and the exporter's connection is cut. Every minute it
// prints what broker and exporter use. In the last quarter they may use little more than in the second. In the end the
// mirrors are those of the Services that live.
func BenchmarkSoak(b *testing.B) {
	text := os.Getenv("SOAK")
	if text == "" {
		b.Skip("SOAK says for how long")
	}
	length := testkit.Value(time.ParseDuration(text))(b)
	s := newSoak(b)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	churn, ctx := errgroup.WithContext(ctx)
	for _, f := range []func(context.Context) error{s.churnServices, s.churnPods, s.churnKeys, s.churnRemotes,
		s.churnAgents, s.cut} {
		churn.Go(func() error { return f(ctx) })
	}
	figure.WithoutTime(b)
	samples := s.sample(ctx, length)
	cancel()
	if err := churn.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		b.Fatal(err)
	}
	s.converges()
	for i, part := range []string{"broker", "exporter"} {
		reportFlat(b, part, samples[i])
	}
	figure.Report(b, "services", float64(s.services.Load()))
	figure.Report(b, "pods", float64(s.pods.Load()))
	figure.Report(b, "remotes", float64(s.remotes.Load()))
	figure.Report(b, "agents", float64(s.agents.Load()))
	figure.Report(b, "cuts", float64(s.cuts.Load()))
}

func newSoak(b *testing.B) *soak {
	s := &soak{hub: newHub(b)}
	source := kubetest.Start(b)
	s.c2 = kubernetes.NewForConfigOrDie(kube.Protobuf(source))
	kubetest.Namespace(b, s.c2, shop)
	kubetest.Create(b, s.kube.CoreV1().ServiceAccounts(mirrors),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "semaphore-agent"}})
	for i := range soakNodes {
		kubetest.Create(b, s.c2.CoreV1().Nodes(), soakNode(i, 0))
	}
	s.remote("c2", 0)
	s.start("encryption, services, policy")
	listener := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(b)
	s.proxy = proxy.New(listener, func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", s.federation)
	})
	go func() { _ = s.proxy.Run(b.Context()) }()
	s.exporter = s.source("c2", source, listener.Addr().String(), "encryption, services, policy")
	return s
}

// soakNode is a node of c2 in a version, which has a key of its own.
func soakNode(i, version int) *corev1.Node {
	prefix := fmt.Sprintf("10.100.%d.0/24", i)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i), Annotations: map[string]string{
			naming.PubKeyAnnotation("c1"):   base64.StdEncoding.EncodeToString(publicKey("node", i+version*soakNodes)),
			naming.EndpointAnnotation("c1"): fmt.Sprintf("172.16.0.%d:51820", 1+i),
		}},
		Spec: corev1.NodeSpec{PodCIDR: prefix, PodCIDRs: []string{prefix}},
	}
}

// every calls f so often a second until ctx ends, with a count. An error ends it, and the soak with it.
func every(ctx context.Context, interval time.Duration, f func(i int) error) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for i := 0; ; i++ {
		if err := f(i); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// slice returns the slice of a Service in a version.
func (s *soak) slice(i, version int) *discoveryv1.EndpointSlice {
	return sourceSlice(sourceService(shop, fmt.Sprint("web-", i)), soakEndpoints, (i+version*7)*soakEndpoints%(1<<14))
}

// churnServices makes three Services with a slice each a second, deletes the oldest, and changes five slices.
func (s *soak) churnServices(ctx context.Context) error {
	services, slices := s.c2.CoreV1().Services(shop), s.c2.DiscoveryV1().EndpointSlices(shop)
	return every(ctx, time.Second/3, func(i int) error {
		name := fmt.Sprint("web-", i)
		if _, err := services.Create(ctx, sourceService(shop, name), metav1.CreateOptions{}); err != nil {
			return err
		}
		if _, err := slices.Create(ctx, s.slice(i, 0), metav1.CreateOptions{}); err != nil {
			return err
		}
		s.services.Add(1)
		if old := i - soakServices; old >= 0 {
			name := fmt.Sprint("web-", old)
			if err := errors.Join(slices.Delete(ctx, name+"-x7d2f", metav1.DeleteOptions{}),
				services.Delete(ctx, name, metav1.DeleteOptions{})); err != nil {
				return err
			}
		}
		_, err := slices.Update(ctx, s.slice(max(0, i-rand.IntN(min(i+1, soakServices))), 1+i), metav1.UpdateOptions{})
		return err
	})
}

// churnPods makes ten pods a second, a hundred of which are a set with a name of its own, and deletes the oldest. So
// the broker's memory of who had an address, with room for 32,768 changes, is full before the second quarter of 2 h.
func (s *soak) churnPods(ctx context.Context) error {
	pods := s.c2.CoreV1().Pods(shop)
	return every(ctx, time.Second/10, func(i int) error {
		address := fmt.Sprintf("10.100.%d.%d", 64+i%(1<<14)>>8, i&255)
		if _, err := pods.Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pod-", i),
				Labels: map[string]string{naming.DefaultLabelDomain + "/name": fmt.Sprint("set-", i/100)}},
			Spec: corev1.PodSpec{NodeName: "node-0", Containers: []corev1.Container{{Name: "web", Image: "web"}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address,
				PodIPs: []corev1.PodIP{{IP: address}}},
		}, metav1.CreateOptions{}); err != nil {
			return err
		}
		if _, err := pods.Patch(ctx, fmt.Sprint("pod-", i), "application/merge-patch+json", []byte(fmt.Sprintf(
			`{"status":{"phase":"Running","podIP":%[1]q,"podIPs":[{"ip":%[1]q}]}}`, address)), metav1.PatchOptions{},
			"status"); err != nil {
			return err
		}
		s.pods.Add(1)
		if old := i - soakPods; old >= 0 {
			return pods.Delete(ctx, fmt.Sprint("pod-", old), metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))})
		}
		return nil
	})
}

// churnKeys gives a node of c2 a new key every three seconds.
func (s *soak) churnKeys(ctx context.Context) error {
	return every(ctx, 3*time.Second, func(i int) error {
		_, err := s.c2.CoreV1().Nodes().Update(ctx, soakNode(i%soakNodes, 1+i/soakNodes), metav1.UpdateOptions{})
		return err
	})
}

// churnRemotes has a remote with a name of its own come every twenty seconds, and end after a minute.
func (s *soak) churnRemotes(ctx context.Context) error {
	var ends []func() error
	defer func() {
		for _, end := range ends {
			_ = end()
		}
	}()
	return every(ctx, 20*time.Second, func(i int) error {
		name, number := fmt.Sprint("r", i), 1+i%50
		s.remote(name, number)
		player := s.play(name, number, content{nodes: 10, services: 20, endpoints: 200, members: 50, sets: 2})
		stop := player.publish()
		ends = append(ends, func() error {
			stop()
			player.publisher.Forget()
			return s.remove(name)
		})
		s.remotes.Add(1)
		if len(ends) <= 3 {
			return nil
		}
		end := ends[0]
		ends = ends[1:]
		return end()
	})
}

// churnAgents has the agent of a new node attach every ten seconds, and ends the oldest and its node.
func (s *soak) churnAgents(ctx context.Context) error {
	var ends []func()
	defer func() {
		for _, end := range ends {
			end()
		}
	}()
	return every(ctx, 10*time.Second, func(i int) error {
		c, err := s.client(ctx, i)
		if err != nil {
			return err
		}
		attached, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.attach(attached, c)
		}()
		ends = append(ends, func() { cancel(); <-done })
		s.agents.Add(1)
		if len(ends) <= soakAgents {
			return nil
		}
		ends[0]()
		ends = ends[1:]
		old := fmt.Sprintf("node-%05d", i-soakAgents)
		return errors.Join(s.kube.CoreV1().Nodes().Delete(ctx, old, metav1.DeleteOptions{}), os.Remove(s.dir+"/token-"+old),
			s.kube.CoreV1().Pods(mirrors).Delete(ctx, "agent-"+old, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}))
	})
}

// cut resets the exporter's connection every fifteen seconds.
func (s *soak) cut(ctx context.Context) error {
	return every(ctx, 15*time.Second, func(int) error {
		s.proxy.Reset()
		s.cuts.Add(1)
		return nil
	})
}

// sample reads what broker and exporter use once a minute, at least sixteen times in all, and prints it.
func (s *soak) sample(ctx context.Context, length time.Duration) (samples [2][]usage) {
	interval := min(time.Minute, length/16)
	began := time.Now()
	for range int(length / interval) {
		select {
		case <-ctx.Done():
			return samples // the churn says why
		case <-time.After(interval):
		}
		line := fmt.Sprintf("%6s", time.Since(began).Round(time.Second))
		for i, p := range []*program{s.broker, s.exporter} {
			u := testkit.Value(p.usage())(s.b)
			samples[i] = append(samples[i], u)
			line += fmt.Sprintf(" | %s heap %.1f MiB, resident %.1f MiB, %.0f goroutines, %.0f series, %.0f descriptors, %s",
				p.Name, u.heap, u.resident, u.goroutines, u.series, u.descriptor, u.cpu.Round(time.Second))
		}
		fmt.Fprintf(os.Stderr, "%s | so far %d services, %d pods, %d remotes, %d agents\n", line, s.services.Load(),
			s.pods.Load(), s.remotes.Load(), s.agents.Load())
	}
	return samples
}

// reportFlat reports the mean of each figure in the last quarter, beside that of the second quarter.
func reportFlat(b *testing.B, part string, samples []usage) {
	b.Helper()
	quarter := len(samples) / 4
	for _, of := range []struct {
		unit  string
		most  float64
		value func(usage) float64
	}{
		{"heap-MiB", 1.10, func(u usage) float64 { return u.heap }},
		{"resident-MiB", 1.15, func(u usage) float64 { return u.resident }},
		{"goroutines", 1.10, func(u usage) float64 { return u.goroutines }},
		{"series", 1.05, func(u usage) float64 { return u.series }},
		{"descriptors", 1.10, func(u usage) float64 { return u.descriptor }},
	} {
		mean := func(samples []usage) (sum float64) {
			for _, u := range samples {
				sum += of.value(u) / float64(len(samples))
			}
			return sum
		}
		figure.Report(b, part+"-"+of.unit, mean(samples[3*quarter:])).Floor(mean(samples[quarter : 2*quarter])).
			AtMostTimesFloor(of.most)
	}
}

// converges waits until the mirrors and sets are those of what c2 has, and nothing of a remote that left is there.
func (s *soak) converges() {
	s.b.Helper()
	ctx := s.b.Context()
	testkit.Eventually(s.b, 3*time.Minute, "mirrors and sets are those of what lives", func() error {
		lives, err := s.c2.CoreV1().Services(shop).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		pods, err := s.c2.CoreV1().Pods(shop).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		want := 0
		for _, p := range pods.Items {
			want += len(p.Status.PodIPs)
		}
		services, err := s.kube.CoreV1().Services(mirrors).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		of := 0
		for _, o := range services.Items {
			if strings.HasPrefix(o.Name, "c2-") {
				of++
			}
		}
		addresses, err := s.sets(ctx)
		if err == nil && (of != len(lives.Items) || len(services.Items) != of || addresses != want) {
			err = fmt.Errorf("%d mirrors of c2, want %d; %d of others, want none; %d addresses in sets, want %d", of,
				len(lives.Items), len(services.Items)-of, addresses, want)
		}
		return err
	})
}
