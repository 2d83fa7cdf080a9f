package apply

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

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
