package kube

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/test/testbed/proxy"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

// TestRetryWhileAway: the apiserver is unreachable for 20 s. The informer sees what was created meanwhile within 2 s;
// one of client-go alone may take 25 s to its next attempt. An answer that is an error is not retried.
func TestRetryWhileAway(t *testing.T) {
	const away, within = 20 * time.Second, 2 * time.Second
	api := kubetest.Start(t)
	direct := kubernetes.NewForConfigOrDie(api)
	address := loopback.Address(t)
	// open opens the path to the apiserver. While it is closed, connections are refused.
	open := func() (shut func()) {
		listener := testkit.Value(net.Listen("tcp", address))(t)
		network := proxy.New(listener, func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(api.Host, "https://"))
		})
		return testkit.Run(t, network.Run)
	}
	shut := open()
	through := rest.CopyConfig(api)
	through.Host = "https://" + address
	follow := func(retry bool) (seen chan string, failures *atomic.Int64) {
		// Each needs its own client: otherwise both would share a connection.
		client := kubernetes.NewForConfigOrDie(through)
		seen, failures = make(chan string, 10), new(atomic.Int64)
		var lw cache.ListerWatcher = cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "configmaps",
			metav1.NamespaceDefault, fields.Everything())
		if retry {
			lw = RetryWhileAway(lw, func(context.Context, string, int, error) { failures.Add(1) })
		}
		informer := cache.NewSharedIndexInformer(lw, &corev1.ConfigMap{}, 0, nil)
		testkit.Value(informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) { seen <- o.(*corev1.ConfigMap).Name },
		}))(t)
		testkit.Run(t, func(ctx context.Context) error {
			informer.RunWithContext(ctx)
			return nil
		})
		return seen, failures
	}
	ours, failures := follow(true)
	theirs, _ := follow(false)
	create := func(name string) {
		t.Helper()
		kubetest.Create(t, direct.CoreV1().ConfigMaps(metav1.NamespaceDefault),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	sees := func(who string, seen chan string, name string) time.Duration {
		t.Helper()
		began, timeout := time.Now(), time.After(3*time.Minute)
		for {
			select {
			case got := <-seen:
				if got == name {
					return time.Since(began)
				}
			case <-timeout:
				t.Fatalf("%s did not see %s within three minutes", who, name)
			}
		}
	}
	create("before")
	sees("ours", ours, "before")
	sees("client-go's", theirs, "before")

	shut()
	closed, before := time.Now(), failures.Load()
	create("meanwhile")
	time.Sleep(away)
	open()
	beside := kubetest.WriteBeside(t, direct)
	took := sees("ours", ours, "meanwhile")
	if late := beside.Late(); took > within+late {
		t.Errorf("seen %s after the apiserver was back, want %s at most, and %s for a machine as busy as this one", took,
			within, late)
	}
	beside.Stop()
	attempts, passed := int(failures.Load()-before), time.Since(closed)
	t.Logf("seen %s after the apiserver was back, after %d attempts; by client-go's own informer %s later",
		took, attempts, sees("client-go's", theirs, "meanwhile"))
	if attempts < int(away/(2*whileAway)) || attempts > int(2*passed/whileAway)+1 {
		t.Errorf("%d attempts in %s", attempts, passed)
	}

	refused := 0
	nobody := rest.CopyConfig(api)
	nobody.Impersonate.UserName = "nobody"
	forbidden := RetryWhileAway(cache.NewListWatchFromClient(kubernetes.NewForConfigOrDie(nobody).CoreV1().RESTClient(),
		"configmaps", metav1.NamespaceDefault, fields.Everything()),
		func(context.Context, string, int, error) { refused++ })
	_, listed := forbidden.ListWithContext(t.Context(), metav1.ListOptions{})
	_, watched := forbidden.WatchWithContext(t.Context(), metav1.ListOptions{})
	if listed == nil || watched == nil || refused != 0 {
		t.Errorf("what is forbidden: %v, %v, repeated %d times", listed, watched, refused)
	}
}
