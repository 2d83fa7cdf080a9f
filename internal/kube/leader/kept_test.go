package leader

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestRestores: what somebody changes or deletes is restored at the next look, and reported. Between looks nothing is
// sent.
func TestRestores(t *testing.T) {
	api := kubetest.Start(t)
	admin := kubernetes.NewForConfigOrDie(api)
	var requests atomic.Int64
	var broken atomic.Bool
	counted := rest.CopyConfig(api)
	counted.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return kubetest.RoundTripper(func(r *http.Request) (*http.Response, error) {
			requests.Add(1)
			if broken.Load() && r.Method == http.MethodPut {
				return nil, errors.New("broken for the test")
			}
			return next.RoundTrip(r)
		})
	})
	maps := admin.CoreV1().ConfigMaps("default")
	m := NewKept(kubernetes.NewForConfigOrDie(counted), "default", "a", "semaphore", slog.New(slog.DiscardHandler))
	hold := func(text string) {
		t.Helper()
		testkit.Must(t, m.Hold(t.Context(), "k", text))
	}
	look := func() { m.mu.Lock(); m.looked = time.Time{}; m.mu.Unlock() }
	has := func(want string) {
		t.Helper()
		object := kubetest.Get(t, maps, "a")
		if len(object.Data) != 1 || object.Data["k"] != want || len(object.BinaryData) != 0 ||
			object.Labels[naming.LabelManagedBy] != "semaphore" {
			t.Errorf("it has %v %v %v, want k: %s", object.Data, object.BinaryData, object.Labels, want)
		}
	}
	hold("1")
	has("1")
	before := requests.Load()
	hold("1")
	if sent := requests.Load() - before; sent != 0 {
		t.Errorf("%d requests before the next look", sent)
	}
	look()
	if hold("1"); requests.Load()-before != 1 || len(m.Reports()) != 0 {
		t.Errorf("%d requests to look at what is as it was; reported: %v", requests.Load()-before, m.Reports())
	}
	hold("2")
	if has("2"); len(m.Reports()) != 0 {
		t.Errorf("an own change is in the report: %v", m.Reports())
	}
	change := func(do func(*corev1.ConfigMap)) func() {
		return func() {
			object, err := maps.Get(t.Context(), "a", metav1.GetOptions{})
			if err == nil {
				do(object)
				_, err = maps.Update(t.Context(), object, metav1.UpdateOptions{})
			}
			testkit.Must(t, err)
		}
	}
	for name, foreign := range map[string]func(){
		"deleted": func() {
			testkit.Must(t, maps.Delete(t.Context(), "a", metav1.DeleteOptions{}))
		},
		"changed":     change(func(c *corev1.ConfigMap) { c.Data["k"] = "3" }),
		"emptied":     change(func(c *corev1.ConfigMap) { c.Data = nil }),
		"another key": change(func(c *corev1.ConfigMap) { c.Data["l"] = "3" }),
		"bytes":       change(func(c *corev1.ConfigMap) { c.BinaryData = map[string][]byte{"b": {1}} }),
		"no label":    change(func(c *corev1.ConfigMap) { c.Labels = nil }),
	} {
		m.report = ""
		foreign()
		hold("2")
		look()
		hold("2")
		has("2")
		if reported := strings.Join(m.Reports(), ""); !strings.Contains(reported, "ConfigMap a") {
			t.Errorf("%s: reported %q", name, reported)
		}
	}
	// A restore that fails is not done: the next call tries again.
	change(func(c *corev1.ConfigMap) { c.Data["k"] = "3" })()
	look()
	broken.Store(true)
	for range 2 {
		if err := m.Hold(t.Context(), "k", "2"); err == nil {
			t.Error("a write fails, and Hold does not")
		}
	}
	broken.Store(false)
	hold("2")
	has("2")
	m.restored = time.Now().Add(-2 * reportedFor)
	if len(m.Reports()) != 0 {
		t.Error("the report has no end")
	}
}

// TestOthersWrite: somebody else creates, changes and deletes the ConfigMap between the read and the write.
func TestOthersWrite(t *testing.T) {
	api := kubetest.Start(t)
	maps := kubernetes.NewForConfigOrDie(api).CoreV1().ConfigMaps("default")
	var between func()
	racing := rest.CopyConfig(api)
	racing.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return kubetest.RoundTripper(func(r *http.Request) (*http.Response, error) {
			if do := between; r.Method != http.MethodGet && do != nil {
				between = nil
				do()
			}
			return next.RoundTrip(r)
		})
	})
	m := NewKept(kubernetes.NewForConfigOrDie(racing), "default", "b", "semaphore", slog.New(slog.DiscardHandler))
	must := func(err error) {
		t.Helper()
		testkit.Must(t, err)
	}
	foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Data: map[string]string{"k": "foreign"}}
	for i, do := range []func(){
		func() { _, err := maps.Create(t.Context(), foreign, metav1.CreateOptions{}); must(err) },
		func() { _, err := maps.Update(t.Context(), foreign, metav1.UpdateOptions{}); must(err) },
		func() { must(maps.Delete(t.Context(), "b", metav1.DeleteOptions{})) },
	} {
		between = do
		text := string(rune('a' + i))
		must(m.Hold(t.Context(), "k", text))
		object, err := maps.Get(t.Context(), "b", metav1.GetOptions{})
		must(err)
		if object.Data["k"] != text {
			t.Errorf("it has %v, want %s", object.Data, text)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Hold(ended, "k", "z"); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
}
