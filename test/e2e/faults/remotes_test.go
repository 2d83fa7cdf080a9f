package faults

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/e2e"
	"github.com/kube-semaphore/semaphore/test/testbed/proxy"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// One of three remotes is cut off. Changes in the other two arrive as fast as before, and nothing of the first one is
// removed.
func TestF06_OneRemoteOfThreePartitioned(t *testing.T) {
	tier.OnlyAll(t, "TestServicesUnderAPIServerFaults (broker); sim")
	l := newLab(t, "a", "b", "c")
	broker := l.broker(nil)
	proxies := map[string]*proxy.Proxy{}
	for _, name := range []string{"a", "b", "c"} {
		proxies[name] = l.via(broker.address)
		l.exporter(name, proxies[name].Address().String(), nil)
		for i := range 10 {
			l.offer(name, fmt.Sprintf("%s-%d", name, i), i, "")
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		l.waitMirrors(name, 10)
	}
	// slowest returns the longest time of several changes.
	slowest := func(tag string) time.Duration {
		var worst time.Duration
		for i := range 5 {
			for _, name := range []string{"b", "c"} {
				before := len(l.mustMirrors(name)) / 2
				l.offer(name, fmt.Sprintf("%s-%s-%d", name, tag, i), 100+i, "")
				worst = max(worst, l.waitMirrors(name, before+1))
			}
		}
		return worst
	}
	calm := slowest("calm")
	was := l.mustMirrors("a")
	proxies["a"].Set(proxy.Conditions{Stall: true})
	for i := range 10 {
		l.withdraw(fmt.Sprintf("a-%d", i))
		l.offer("a", fmt.Sprintf("a-new-%d", i), 200+i, "")
	}
	parted := time.Now()
	beside := kubetest.WriteBeside(t, l.kube)
	during := slowest("parted")
	late := beside.Late()
	beside.Stop()
	if during > calm+2*time.Second+late {
		t.Errorf("changes of the others took up to %s, before %s, and %s are for a machine as busy as this one",
			seconds(during), seconds(calm), seconds(late))
	}
	pause(t, 12*time.Second-time.Since(parted))
	l.unchanged("a", was)
	for _, name := range []string{"b", "c"} {
		broker.connected(name)
	}
	proxies["a"].Set(proxy.Conditions{})
	took := eventually(t, settle, func(ctx context.Context) error {
		v, err := l.mirrors(ctx, "a")
		if err != nil {
			return err
		}
		for name := range v {
			if !strings.Contains(name, "a-new-") {
				return fmt.Errorf("%s is still there", name)
			}
		}
		if len(v) != 20 {
			return fmt.Errorf("%d mirrors and slices, want 20", len(v))
		}
		return nil
	})
	t.Logf("a change of b or c took up to %s before and %s while a was cut off; a was whole %s after healing",
		seconds(calm), seconds(during), seconds(took))
}

// A message over the limit ends its stream with RESOURCE_EXHAUSTED. The broker, the connected exporter and the replica
// are not affected.
func TestF26_MessageOverLimit(t *testing.T) {
	tier.OnlyAll(t, "R4 of TestFederation (broker)")
	l := newLab(t, "a")
	broker := l.broker(nil)
	exporter := l.exporter("a", broker.address, nil)
	for i := range 10 {
		l.offer("a", fmt.Sprintf("a-%d", i), i, "")
	}
	l.waitMirrors("a", 10)
	was := l.mustMirrors("a")
	ended := exporter.metric("semaphore_exporter_streams_ended_total")
	const attempts = 3
	for range attempts {
		stream, err := semaphorev1.NewFederationServiceClient(l.dial(broker.address, "a", "exporter")).Publish(t.Context())
		testkit.Must(t, err)
		huge := &semaphorev1.PublishRequest{Message: &semaphorev1.PublishRequest_Hello{Hello: &semaphorev1.Hello{
			Cluster: "a", ProtocolVersion: 1, MinProtocolVersion: 1, Epoch: strings.Repeat("x", 8<<20),
		}}}
		if err := stream.Send(huge); err != nil {
			t.Logf("sending: %v", err)
		}
		if _, err := stream.Recv(); grpcstatus.Code(err) != codes.ResourceExhausted {
			t.Errorf("8 MiB were answered with %v, want RESOURCE_EXHAUSTED", err)
		}
	}
	// gRPC refuses a message over the limit before the broker's handler runs, and counts it.
	var counted float64
	eventually(t, settle, func(context.Context) error {
		counted = broker.metric("grpc_server_handled_total", `grpc_code="ResourceExhausted"`)
		if counted != attempts {
			return fmt.Errorf("%v of them are counted, want %d", counted, attempts)
		}
		return nil
	})
	l.unchanged("a", was)
	if err := broker.runs(); err != nil {
		t.Error(err)
	}
	if n := exporter.metric("semaphore_exporter_streams_ended_total"); n != ended {
		t.Errorf("the exporter's own stream ended %v times", n-ended)
	}
	l.offer("a", "a-after", 100, "")
	l.waitMirrors("a", 11)
	t.Logf("%v messages of 8 MiB refused and counted; the exporter's stream continued", counted)
}

// Of two RemoteClusters with overlapping subnets, the broker does not accept the newer one, and names both. Objects of
// one remote inside another's subnet are refused one by one.
func TestF31_OverlappingRemotes(t *testing.T) {
	tier.OnlyAll(t, "internal/config and broker/remotes_test.go")
	t.Run("as objects", func(t *testing.T) {
		l := newLab(t, "a", "b")
		l.subnets["b"] = "10.11.128.0/17"
		broker := l.broker(nil)
		eventually(t, settle, func(ctx context.Context) error {
			s, err := broker.status(ctx)
			if err != nil {
				return err
			}
			text := strings.Join(s.Problems, "\n")
			for _, word := range []string{"RemoteCluster b is not accepted", "10.11.128.0/17 overlaps 10.11.0.0/16 (a "} {
				if !strings.Contains(text, word) {
					return fmt.Errorf("problems do not have %q: %s", word, text)
				}
			}
			return nil
		})
	})
	t.Run("at run time", func(t *testing.T) {
		l := newLab(t, "a", "b")
		broker := l.broker(nil)
		l.exporter("a", broker.address, nil)
		l.offer("a", "mine", 5, "")
		l.waitMirrors("a", 1)
		was := l.mustMirrors("a")
		l.exporter("b", broker.address, nil)
		l.offer("b", "good", 6, "")
		l.offer("b", "thief", 7, "10.11.1.6") // the address of a's endpoint
		eventually(t, settle, func(ctx context.Context) error {
			v, err := l.mirrors(ctx, "b")
			if err != nil {
				return err
			}
			if len(v) < 3 {
				return fmt.Errorf("of b: %v", v)
			}
			link, err := broker.link(ctx, "b")
			if err != nil {
				return err
			}
			for _, k := range link.Kinds {
				if k.Kind == semaphorev1.Kind_KIND_ENDPOINT_SLICE && k.Refused == 1 {
					return nil
				}
			}
			return fmt.Errorf("refused: %v", link.Kinds)
		})
		var s *semaphorev1.GetStatusResponse
		eventually(t, settle, func(ctx context.Context) (err error) {
			if s, err = broker.status(ctx); err != nil {
				return err
			}
			if text := strings.Join(s.Problems, "\n"); !strings.Contains(text, "thief") || !strings.Contains(text, "10.11.1.6") {
				return fmt.Errorf("problems do not name object and address: %s", text)
			}
			return nil
		})
		slices, err := l.kube.DiscoveryV1().EndpointSlices(e2e.Namespace).List(t.Context(), metav1.ListOptions{})
		testkit.Must(t, err)
		for _, s := range slices.Items {
			for _, e := range s.Endpoints {
				if strings.HasPrefix(s.Name, "b-") && e.Addresses[0] == "10.11.1.6" {
					t.Errorf("%s was written with the address of a's", s.Name)
				}
			}
		}
		l.unchanged("a", was)
		t.Logf("refused: %s", strings.Join(s.Problems, "; "))
	})
}

// An exporter that suddenly exports nothing, because of missing permissions or a mistyped selector, removes nothing.
func TestF37_ExporterExportsNothing(t *testing.T) {
	tier.OnlyAll(t, "R24 of broker/replica and broker/rules_test.go; sim")
	l := newLab(t, "a")
	broker := l.broker(nil)
	const offered = 40
	for i := range offered {
		l.offer("a", fmt.Sprintf("a-%d", i), i, "")
	}
	exporter := l.exporter("a", broker.address, nil)
	l.waitMirrors("a", offered)
	was := l.mustMirrors("a")

	t.Run("a mistyped selector", func(t *testing.T) {
		exporter.kill()
		typo := l.exporter("a", broker.address, config{"mirrorSelector": "lab=typo"})
		typo.connected("hub")
		var alarm string
		eventually(t, settle, func(ctx context.Context) error {
			s, err := broker.status(ctx)
			if err != nil {
				return err
			}
			alarm = strings.Join(s.Problems, "; ")
			if alarm == "" {
				return fmt.Errorf("no problem is reported")
			}
			return nil
		})
		pause(t, 5*time.Second)
		l.unchanged("a", was)
		typo.kill()
		exporter = l.exporter("a", broker.address, nil)
		exporter.connected("hub")
		eventually(t, settle, func(ctx context.Context) error {
			s, err := broker.status(ctx)
			if err == nil && len(s.Problems) > 0 {
				err = fmt.Errorf("still reported: %v", s.Problems)
			}
			return err
		})
		l.unchanged("a", was)
		t.Logf("the alarm: %s", alarm)
	})
	t.Run("lost rights", func(t *testing.T) {
		exporter.kill()
		nobody := *l.rest
		nobody.Impersonate.UserName = "system:serviceaccount:shop:nobody"
		without := *l
		without.rest, without.t = &nobody, t
		mute := without.exporter("a", broker.address, nil)
		pause(t, 8*time.Second)
		eventually(t, settle, func(ctx context.Context) error {
			s, err := mute.status(ctx)
			if err == nil && s.Ready {
				t.Errorf("an exporter that may read nothing is ready")
			}
			return err
		})
		l.unchanged("a", was)
		mute.kill()
		exporter = l.exporter("a", broker.address, nil)
		exporter.connected("hub")
		l.unchanged("a", was)
	})
}
