package kube

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/url"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// whileAway is the average wait before a list or a watch is retried while the apiserver does not answer.
const whileAway = time.Second

var (
	// ErrNoAnswer stands for a connection that broke before the answer to a watch. client-go returns no error then, but
	// a watch that ends immediately.
	ErrNoAnswer = errors.New("the connection broke before the answer")
	emptyWatch  = reflect.TypeOf(watch.NewEmptyWatch())
)

// Asking returns lists and watches that make their requests through ask. It must call request at least once; the answer
// to the last call is returned. verb is the RBAC verb. request fails with ErrNoAnswer for a watch without an answer.
func Asking(lw cache.ListerWatcher,
	ask func(ctx context.Context, verb string, request func() error)) *cache.ListWatch {
	with := cache.ToListerWatcherWithContext(lw)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (objects runtime.Object, err error) {
			ask(ctx, "list", func() error {
				objects, err = with.ListWithContext(ctx, o)
				return err
			})
			return objects, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (events watch.Interface, err error) {
			ask(ctx, "watch", func() error {
				events, err = with.WatchWithContext(ctx, o)
				if err == nil && reflect.TypeOf(events) == emptyWatch {
					return ErrNoAnswer
				}
				return err
			})
			return events, err
		},
	}
}

// RetryWhileAway returns lists and watches that retry about once a second while the apiserver does not answer, until
// their context ends. client-go's reflectors instead double their wait, up to a minute: after an outage of a minute
// they would miss what happens in the next one. Answers that are errors are returned, and the reflector backs off. The
// exception is 503, which a proxy or an aggregating apiserver answers for one that is away.
//
// failed, if not nil, is called for each failed attempt that is retried. verb is the RBAC verb, and attempt counts from
// 1 in each request.
func RetryWhileAway(lw cache.ListerWatcher,
	failed func(ctx context.Context, verb string, attempt int, err error)) *cache.ListWatch {
	return Asking(lw, func(ctx context.Context, verb string, request func() error) {
		for attempt := 1; ; attempt++ {
			err := request()
			if err == nil || ctx.Err() != nil || !unanswered(err) {
				return
			}
			if failed != nil {
				failed(ctx, verb, attempt, err)
			}
			if Sleep(ctx, whileAway/2+rand.N(whileAway)) != nil {
				return
			}
		}
	})
}

// unanswered reports whether an error of net/http or a proxy means that no apiserver answered the request.
func unanswered(err error) bool {
	var connection *url.Error
	return errors.As(err, &connection) || errors.Is(err, ErrNoAnswer) || apierrors.IsServiceUnavailable(err)
}
