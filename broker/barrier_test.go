package broker

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit/players"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// barriers counts the Services of settles, so that each has a name of its own.
var barriers atomic.Int32

const barrier = "barrier"

// isBarrier reports whether an object is of settles. Tests that compare what a broker has written leave those out.
func isBarrier(name string) bool { return strings.Contains(name, barrier) }

// settles returns when the broker has done what follows from all that it received before: the remote of e exports one
// Service more, with an endpoint, and it is written; and no other Service or slice waits for that.
func (w *world) settles(t *testing.T, e *players.Exporter, revision uint64, endpoint string) {
	t.Helper()
	name := fmt.Sprint(barrier, barriers.Add(1))
	e.Send(players.Upserts(revision, players.Service("shop", name, 80), players.Slice("shop", name+"-x", name, endpoint)))
	e.Acked(revision + 1)
	eventually(t, "a Service that is exported last is written", func() (bool, string) {
		services, err := w.admin.CoreV1().Services("semaphore").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, s := range services.Items {
			if !strings.HasSuffix(s.Name, "-"+name) {
				continue
			}
			slices, err := w.admin.DiscoveryV1().EndpointSlices("semaphore").List(t.Context(),
				metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + s.Name})
			if err != nil {
				return false, err.Error()
			}
			return len(slices.Items) == 1 && len(slices.Items[0].Endpoints) == 1, fmt.Sprint(slices.Items)
		}
		return false, fmt.Sprintf("%d Services, and not %s", len(services.Items), name)
	})
	eventually(t, "nothing waits to be written", func() (bool, string) {
		_, text := get("http://" + w.cfg.Listen.HTTP + "/metrics")
		queues := 0
		for line := range strings.Lines(text) {
			switch line {
			case "semaphore_broker_queue_depth{queue=\"service\"} 0\n",
				"semaphore_broker_queue_depth{queue=\"endpointslice\"} 0\n":
				queues++
			}
		}
		return queues == 2, text
	})
}
