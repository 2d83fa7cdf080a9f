package apply

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/ctl/fleet"
)

// TestGoneNamesFinalizers: who waits for an object that somebody's finalizer keeps learns which one; that of the
// deletion itself is none.
func TestGoneNamesFinalizers(t *testing.T) {
	for finalizers, want := range map[string]string{
		`"example.org/protection"`:                       "x to be deleted: a finalizer keeps it: example.org/protection",
		`"foregroundDeletion", "example.org/protection"`: "a finalizer keeps it: example.org/protection",
		`"foregroundDeletion"`:                           "ConfigMap sys/x to be deleted: it is there still",
	} {
		ctx, cancel := context.WithCancel(t.Context())
		asked := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if asked++; asked == 2 {
				cancel()
			}
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "sys",
				"deletionTimestamp": "2026-11-27T05:00:00Z", "finalizers": [%s]}}`, finalizers)
		}))
		c, err := fleet.NewCluster("k1", "sys", &rest.Config{Host: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		a := New(c, io.Discard)
		err = a.Gone(ctx, Ref{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Namespace: "sys",
			Name: "x"})
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("finalizers %s: %v", finalizers, err)
		}
		cancel()
		server.Close()
	}
}

// TestUntilTheLastLook: a look for which no time is left is the end of the wait, whose error says what is missing.
func TestUntilTheLastLook(t *testing.T) {
	c, err := fleet.NewCluster("k1", "sys", &rest.Config{Host: "https://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	limit := rate.NewLimiter(rate.Every(time.Hour), 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = New(c, io.Discard).Until(ctx, "the broker", func() (string, error) { return "it starts", limit.Wait(ctx) })
	if err == nil || !strings.HasSuffix(err.Error(), "for the broker: it starts") {
		t.Error(err)
	}
}
