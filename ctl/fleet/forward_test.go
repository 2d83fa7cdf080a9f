package fleet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/kube-semaphore/semaphore/ctl/fleet"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// forwards connects streams to a port, as a kubelet does for an apiserver; nothing listens on other ports. It closes
// the stream of a refused port, as a kubelet does (k8s.io/cri-streaming, portForward): a reset that comes before the
// stream is open leaves a goroutine in client-go.
func (k *kubelet) forwards(w http.ResponseWriter, r *http.Request, port, backend string) {
	if _, err := httpstream.Handshake(r, w, []string{"portforward.k8s.io"}); err != nil {
		return
	}
	opened := make(chan httpstream.Stream, 16)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		opened <- s
		return nil
	})
	if conn == nil {
		return
	}
	k.running.Add(1)
	defer k.running.Done()
	defer conn.Close()
	failures := map[string]httpstream.Stream{}
	for {
		select {
		case <-conn.CloseChan():
			return
		case s := <-opened:
			id := s.Headers().Get("requestID")
			if s.Headers().Get("streamType") == "error" {
				failures[id] = s
				continue
			}
			failure := failures[id]
			if s.Headers().Get("port") != port {
				fmt.Fprint(failure, "connection refused")
				_, _ = failure.Close(), s.Close()
				continue
			}
			to, err := net.Dial("tcp", backend)
			if err != nil {
				fmt.Fprint(failure, err)
				_, _ = failure.Close(), s.Close()
				continue
			}
			k.running.Go(func() {
				defer to.Close()
				_, _ = io.Copy(s, to)
				_, _ = failure.Close(), s.Close()
			})
			k.running.Go(func() { _, _ = io.Copy(to, s) })
		}
	}
}

// TestForward: a real apiserver connects a browser to a port of the leading broker's pod, only for a user with the
// right of kubectl port-forward. If nothing listens on the port, the error says so.
func TestForward(t *testing.T) {
	cfg, admin := startServer(t)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "asked as %s", r.Host)
	}))
	t.Cleanup(backend.Close)
	k := &kubelet{t: t, sockets: map[string]string{}, port: "8085", backend: backend.Listener.Addr().String()}
	k.serve(admin)
	k.pod(admin, "broker-1", "broker", true, nil)
	forward := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/portforward"},
		Verbs: []string{"create", "get"}}
	try := func(kubeconfig string, port uint16) (body string, err error) {
		c := testkit.Value((&fleet.Access{Kubeconfig: kubeconfig, Namespace: "semaphore"}).Cluster())(t)
		pods := testkit.Value(c.Pods(t.Context(), fleet.Broker, ""))(t)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		var said bytes.Buffer
		var failed error
		err = c.Forward(ctx, pods[0], port, &said, func(local uint16) error {
			client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			response, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/", local))
			if failed = err; err == nil {
				data, _ := io.ReadAll(response.Body)
				response.Body.Close()
				body = string(data)
			}
			cancel()
			return nil
		})
		return body, errors.Join(err, failed)
	}
	allowed := operator(t, admin, cfg, "allowed", append([]rbacv1.PolicyRule{forward}, rights...))
	body := testkit.Value(try(allowed, 8085))(t)
	if !strings.HasPrefix(body, "asked as 127.0.0.1:") {
		t.Errorf("%q", body)
	}
	// A failure after the port is open ends the command with that error.
	c := testkit.Value((&fleet.Access{Kubeconfig: allowed, Namespace: "semaphore"}).Cluster())(t)
	pods := testkit.Value(c.Pods(t.Context(), fleet.Broker, ""))(t)
	ended, noBrowser := make(chan error, 1), errors.New("no browser")
	go func() {
		ended <- c.Forward(t.Context(), pods[0], 8085, io.Discard, func(uint16) error { return noBrowser })
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, noBrowser) {
			t.Errorf("it ends with %v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Error("it does not end")
	}
	if body, err := try(allowed, 9); err == nil {
		t.Errorf("a port where nothing listens answers %q", body)
	}
	if body, err := try(operator(t, admin, cfg, "stranger", rights), 8085); err == nil ||
		!strings.Contains(err.Error(), "forbidden") {
		t.Errorf("without the right: %q, %v", body, err)
	}
}
