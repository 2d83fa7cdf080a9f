package apply

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// A list or a watch that succeeds ends the failure of one before, also when all was read long ago: an apiserver that
// starts refuses what it will allow a moment later.
func TestASuccessEndsAFailure(t *testing.T) {
	failed := errors.New("forbidden")
	lw := Watch[*corev1.Node]{Failed: func(err error) { failed = err }}.answered(&cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			return &corev1.NodeList{}, nil
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			return watch.NewFake(), nil
		},
	})
	testkit.Value(lw.ListWithContext(t.Context(), metav1.ListOptions{}))(t)
	if failed != nil {
		t.Error("a list does not end it")
	}
	failed = errors.New("forbidden")
	testkit.Value(lw.WatchWithContext(t.Context(), metav1.ListOptions{}))(t)
	if failed != nil {
		t.Error("a watch does not end it")
	}
}

// A list or a watch that the apiserver refuses long after the first one is found for as long as it is refused, each by
// itself, also if another one of the same kind succeeds.
func TestAWatchThatFailsLaterIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		options := options(t).Informers()
		var refusal atomic.Pointer[apierrors.StatusError]
		open := make(chan *watch.FakeWatcher, 10)
		namespaces := func(refused func() error) *Watched[*corev1.Namespace] {
			return &Watched[*corev1.Namespace]{options: options, watch: Watch[*corev1.Namespace]{
				Kind: "namespace", Example: &corev1.Namespace{},
				Reduce: func(n *corev1.Namespace) *corev1.Namespace { return n },
				Saw:    func(_, _ *corev1.Namespace, _ bool) {},
				ListWatch: listed{&cache.ListWatch{
					ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
						return &corev1.NamespaceList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, refused()
					},
					WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
						if err := refused(); err != nil {
							return nil, err
						}
						w := watch.NewFake()
						open <- w
						return w, nil
					},
				}}}}
		}
		works := namespaces(func() error { return nil })
		testkit.Run(t, works.Run)
		synctest.Wait()
		other := <-open
		fails := namespaces(func() error {
			if err := refusal.Load(); err != nil {
				return err
			}
			return nil
		})
		end := testkit.Run(t, fails.Run)
		is := func(want string) {
			t.Helper()
			if got := fmt.Sprint(finding.Texts(options.Failing.Findings())); got != want || !fails.Synced() {
				t.Errorf("found %s, want %s; synced %t", got, want, fails.Synced())
			}
		}
		for text, err := range map[string]*apierrors.StatusError{
			"failed to list namespace: namespaces is forbidden: a role is gone": apierrors.NewForbidden(
				corev1.Resource("namespaces"), "", errors.New("a role is gone")),
			"busy": apierrors.NewTooManyRequests("busy", 1),
		} {
			refusal.Store(nil)
			time.Sleep(time.Minute)
			is("[]")
			refusal.Store(err)
			(<-open).Stop()
			other.Stop()
			time.Sleep(time.Minute)
			other = <-open
			is("[namespaces: the watch fails: " + text + "]")
		}
		end()
		is("[]")
	})
}
