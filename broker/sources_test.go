package broker

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/semaphore/internal/identity"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// helloFrom is the Hello of c2's exporter that reads the cluster with a UID.
func helloFrom(source, epoch string) *semaphorev1.PublishRequest {
	m := players.Hello("c2", epoch, 100, players.AllKinds...)
	m.GetHello().SourceId = source
	return m
}

// TestASecondCluster: a cluster that was restored from a backup beside the original has its certificate. It changes no
// object, however often it tries, and whether the original is connected or not, also after a restart of the broker;
// both sides report it. One command of an operator lets it in, and then the original is the one that is refused.
func TestASecondCluster(t *testing.T) {
	r := worldOfObjects(t)
	stop := r.start(r.cfg)
	r.create("c2", "{podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]}")
	r.shows("c2", "Accepted, not Connected (NeverConnected), Healthy unknown, port 7775")
	const original, second = "0c5f0000-0000-4000-8000-000000000001", "0c5f0000-0000-4000-8000-000000000002"

	first := r.exporter("c2")
	first.SendFrom(original, "c2", "e1", players.Node("n1", 1, "10.2.1.0/24"), players.Service("shop", "echo", 80),
		players.Slice("shop", "echo-1", "echo", "10.2.1.5"))
	r.becomes("the original's Service", `
pool semaphore-c2-10-2-0-0-16: 10.2.0.0/16 disabled true
service c2-shop-73736d-echo: 80
slice of c2-shop-73736d-echo: 10.2.1.5`)
	sourceID := func() (id string) {
		u := kubetest.GetObject(t, r.api, "c2")
		id, _, _ = unstructured.NestedString(u.Object, "status", "sourceID")
		return id
	}
	eventually(t, "the original stands", func() (bool, string) { return sourceID() == original, sourceID() })
	before := r.written()
	// refused has the exporter of a cluster try, and checks that nothing is accepted from it and that it learns why.
	refused := func(source, stands string, times int) {
		t.Helper()
		for i := range times {
			conn := r.clusters.dial(t, "c2", "exporter", r.cfg.Listen.Federation, identity.Broker("c1"))
			e := players.Publish(t, conn)
			e.Send(helloFrom(source, fmt.Sprint("other", i)))
			err := e.Err()
			conn.Close() // as an exporter does: of many open connections the oldest is closed
			if status.Code(err) != codes.AlreadyExists || !strings.Contains(err.Error(), stands) ||
				!strings.Contains(err.Error(), `patch remotecluster c2 --type merge -p '{"spec":{"sourceID":"`+source+`"}}'`) {
				t.Fatalf("attempt %d ended with %v", i, err)
			}
		}
		if after := r.written(); !maps.Equal(after, before) {
			t.Fatalf("while it tries:\n%v, was\n%v", after, before)
		}
	}
	refused(second, original, 10)
	first.Send(players.Upserts(101, players.Member("shop", "p1", "u1", "web", "10.2.1.7")))
	first.Acked(101) // its stream continues
	r.shows("c2", "Accepted, Connected, not Healthy (SourceRefused), port 7775")
	r.event(t, "SourceRefused", "a second cluster", second)
	eventually(t, "the set", func() (bool, string) {
		before = r.written()
		return len(before) == 4, fmt.Sprint(before)
	})
	if text := fmt.Sprint(r.status(r.cfg).GetFindings()); !strings.Contains(text, "SourceRefused") ||
		!strings.Contains(text, original) || !strings.Contains(text, second) {
		t.Errorf("the status has %s", text)
	}

	// An exporter that does not know what it reads displaces none that does.
	e := r.exporter("c2")
	e.Send(helloFrom("", "unknown"))
	if err := e.Err(); status.Code(err) != codes.AlreadyExists {
		t.Errorf("without a source: %v", err)
	}

	// The original ends, and the broker restarts: the second has no more right than before.
	first.Cancel()
	refused(second, original, 3)
	r.shows("c2", "Accepted, not Connected (Disconnected), not Healthy (SourceRefused), port 7775")
	stop()
	stop = r.start(r.cfg)
	refused(second, original, 3)
	first = r.exporter("c2")
	first.SendFrom(original+"/1", "c2", "e1b", players.Node("n1", 1, "10.2.1.0/24"), players.Service("shop", "echo", 80),
		players.Slice("shop", "echo-1", "echo", "10.2.1.5"), players.Member("shop", "p1", "u1", "web", "10.2.1.7"))

	// The operator's word ends the stream of the one, and lets the other in.
	r.patch("c2", `{"sourceID": "`+second+`"}`)
	if err := first.Err(); status.Code(err) != codes.AlreadyExists || !strings.Contains(err.Error(), second) {
		t.Errorf("the original's stream ended with %v", err)
	}
	r.shows("c2", "Accepted, not Connected (Disconnected), Healthy, port 7775")
	rebuilt := r.exporter("c2")
	rebuilt.SendFrom(second, "c2", "e2", players.Node("n1", 1, "10.2.1.0/24"), players.Service("shop", "echo", 80),
		players.Slice("shop", "echo-1", "echo", "10.2.1.9"), players.Member("shop", "p1", "u1", "web", "10.2.1.7"))
	eventually(t, "the rebuilt cluster stands", func() (bool, string) { return sourceID() == second, sourceID() })
	eventually(t, "its endpoint", func() (bool, string) {
		text := fmt.Sprint(r.written())
		return strings.Contains(text, "10.2.1.9") && !strings.Contains(text, "10.2.1.5"), text
	})
	r.shows("c2", "Accepted, Connected, Healthy, port 7775") // within the time for which an attempt counts
	if text := fmt.Sprint(r.status(r.cfg).GetFindings()); strings.Contains(text, "SourceRefused") {
		t.Errorf("it stands, and the status has %s", text)
	}
	before = r.written()
	refused(original, second, 3)
	stop()
}
