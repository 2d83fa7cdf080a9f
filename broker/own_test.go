package broker

import (
	"net/netip"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// ownPods makes the broker accept its own exporter.
func ownPods(cfg *config.Broker) {
	cfg.GlobalServices.PodSubnets, cfg.GlobalServices.PodPrefixes = []string{"10.1.0.0/16"},
		[]netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
}

// The own exporter is one more cluster for its broker. The broker accepts only services from it, and the brake retains
// a withdrawal of most of them.
func TestTheOwnExporter(t *testing.T) {
	kubetest.NoLeaks(t)
	l := serve(t, func(cfg *config.Broker) {
		ownPods(cfg)
		cfg.Brake = config.Brake{Percent: 50, AtLeast: 2, Hold: config.Duration{Duration: time.Hour}}
	})
	services, slices := semaphorev1.Kind_KIND_SERVICE, semaphorev1.Kind_KIND_ENDPOINT_SLICE
	e := l.exporter("c1")
	if w := e.Greet(players.Hello("c1", "e1", 3, services, slices,
		semaphorev1.Kind_KIND_SET_MEMBER)); w.GetCluster() != "c1" {
		t.Fatalf("welcome %v", w)
	}
	global := func(name string) *semaphorev1.Object {
		o := players.Service("shop", name, 80)
		o.GetService().Global = true
		return o
	}
	e.Send(players.Snapshot(services, 3, global("a"), global("b"), global("c"))...)
	e.Send(players.Snapshot(slices, 3, players.Slice("shop", "a-1", "a", "10.1.1.5", "10.2.1.5"))...)
	e.Send(players.Snapshot(semaphorev1.Kind_KIND_SET_MEMBER, 3, players.Member("shop", "web", "u1", "front",
		"10.1.1.6"))...)
	codesOf := map[string]string{}
	for _, r := range e.Acked(3) {
		codesOf[semaphorev1.KindName(r.GetKey().GetKind())] = r.GetCode()
	}
	if len(codesOf) != 2 || codesOf["endpointslice"] != "IPOutsidePodSubnets" ||
		codesOf["setmember"] != "KindNotAccepted" {
		t.Errorf("refused as %v", codesOf)
	}
	own := l.server.Status()[0]
	if own.GetCluster() != "c1" || !own.GetConnected() || len(own.GetKinds()) != 2 ||
		own.GetKinds()[0].GetObjects() != 3 || !own.GetKinds()[1].GetComplete() || own.GetLastHeard() == nil {
		t.Errorf("status %v", own)
	}
	e.Send(players.Deletion(4, players.Service("shop", "a")), players.Deletion(5, players.Service("shop", "b")))
	e.Acked(5)
	if own = l.server.Status()[0]; own.GetKinds()[0].GetRetained() == 0 {
		t.Errorf("nothing is retained: %v", own)
	}
	if len(l.server.Status()) != 3 {
		t.Errorf("links: %v", l.server.Status())
	}

	// Only the exporter itself can publish for it.
	for _, who := range []struct{ cluster, part string }{{"c1", "broker"}, {"c1", "semaphorectl"}} {
		if err := refused(t, l.dial(who.cluster, who.part)); err == nil {
			t.Errorf("%v publishes", who)
		}
	}
	other := l.exporter("c2")
	other.Send(players.Hello("c1", "e9", 1, services))
	if err := other.Err(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("c2 says that it is c1: %v", err)
	}
}
