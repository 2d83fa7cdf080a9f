package broker

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
)

// TestRestoredEtcd restores the etcd of the broker's cluster to an earlier state without the broker's objects. Watches
// do not show that. The broker exits with the reason, with any features, and the next one writes everything again.
func TestRestoredEtcd(t *testing.T) {
	for _, c := range []struct {
		name     string
		features config.Features
		export   []*semaphorev1.Object
		all      string
	}{
		{"services", config.Features{config.Encryption, config.Services, config.Policy},
			[]*semaphorev1.Object{players.Service("shop", "echo", 80), players.Slice("shop", "echo-x", "echo", "10.2.1.5")}, `
service c2-shop-73736d-echo: 80
slice of c2-shop-73736d-echo: 10.2.1.5`},
		{"policy alone", config.Features{config.Policy},
			[]*semaphorev1.Object{players.Member("shop", "web-0", "u1", "web", "10.2.1.5")}, `
set c2-shop-web: 10.2.1.5/32`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			api, store := kubetest.StartRestorable(t)
			w := newWorldAt(t, api)
			w.cfg.Features = c.features
			file := kubetest.Described(t, api, w.cfg)
			restore := store.BackUp(t)
			_, done := w.launch(file)
			eventually(t, "ready", func() (bool, string) { return get("http://" + w.cfg.Listen.HTTP + "/readyz") })
			all := `
pool semaphore-c2-10-2-0-0-16: 10.2.0.0/16 disabled true
pool semaphore-c3-10-3-0-0-16: 10.3.0.0/16 disabled true` + c.all
			w.exporter("c2").SendAll("c2", "e1", c.export...)
			w.becomes("everything of c2", all)
			// The broker knows how far the store is after the next look at it that begins now. The one before may have begun.
			before := w.lists(t)
			eventually(t, "the broker looked twice how far the store is", func() (bool, string) {
				n := w.lists(t) - before
				return n >= 2, fmt.Sprint(n)
			})

			restore()
			began := time.Now()
			select {
			case err := <-done:
				t.Logf("after %s the broker ended: %v", time.Since(began).Round(time.Second), err)
				if !errors.Is(err, kube.ErrPutBack) {
					t.Errorf("the broker ended with %v", err)
				}
			case <-time.After(patience):
				t.Fatalf("three minutes after the restore the broker still runs, and has %v", w.written())
			}
			done <- nil // for the cleanup
			w.start(file)
			w.exporter("c2").SendAll("c2", "e1", c.export...)
			w.becomes("everything of c2 again", all)
		})
	}
}

// lists is how many lists of the objects by which brokers look how far the store is the apiserver has answered.
func (w *world) lists(t *testing.T) (n int) {
	t.Helper()
	metrics := testkit.Value(w.admin.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context()))(t)
	for line := range strings.Lines(string(metrics)) {
		if strings.HasPrefix(line, "apiserver_request_total{") && strings.Contains(line, `verb="LIST"`) &&
			(strings.Contains(line, `resource="services"`) || strings.Contains(line, `resource="globalnetworksets"`)) {
			fields := strings.Fields(line)
			count, err := strconv.Atoi(fields[len(fields)-1])
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			n += count
		}
	}
	return n
}
