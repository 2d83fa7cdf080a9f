package apply

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
)

// silent is an apiserver whose watch sends nothing, and where somebody deletes each object immediately: what a watch
// that was lost and made again between the two looks like.
type silent struct{ creates atomic.Int32 }

func (s *silent) Create(_ context.Context, o *corev1.Service) (*corev1.Service, error) {
	s.creates.Add(1)
	out := o.DeepCopy()
	out.UID, out.ResourceVersion = "u", "5"
	return out, nil
}

func (s *silent) Get(_ context.Context, o *corev1.Service) (*corev1.Service, error)    { return o, nil }
func (s *silent) Update(_ context.Context, o *corev1.Service) (*corev1.Service, error) { return o, nil }
func (s *silent) Delete(context.Context, *corev1.Service) error                        { return nil }

// listed is a watch that begins with a list.
type listed struct{ *cache.ListWatch }

func (listed) IsWatchListSemanticsUnSupported() bool { return true }

// A write that the informer never delivers is believed for a while only, and then the name is reconciled again.
func TestAWriteThatTheWatchSkipsIsReconciledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &silent{}
		listWatch := &cache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
				return &corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, nil
			},
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface,
				error) {
				return watch.NewFake(), nil
			},
		}
		observed := 0
		o := newObjects(kind[*corev1.Service]{
			Kind: writes.Kind[*corev1.Service]{
				Name:  "service",
				Merge: mergeService,
				Equal: func(a, b *corev1.Service) bool { return a.Name == b.Name },
			},
			example: &corev1.Service{},
			connect: func(context.Context) (connection[*corev1.Service], error) {
				return connection[*corev1.Service]{client: api, listWatch: listed{listWatch}}, nil
			},
		}, writes.Desired[*corev1.Service]{
			Names: func() []string { return []string{"s"} },
			Want: func(string, string) writes.Answer[*corev1.Service] {
				t.Error("a loop that starts to write asked without recording it")
				return writes.Answer[*corev1.Service]{}
			},
			Reserve: func(string, string) writes.Answer[*corev1.Service] {
				return writes.Answer[*corev1.Service]{Verdict: writes.Present,
					Object: &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"}}}
			},
			Observed: func(_ string, _ *corev1.Service, there bool) {
				if !there {
					observed++
				}
			},
		}, options(t))
		ctx, cancel := context.WithTimeout(t.Context(), writes.BeliefFor+writes.BeliefFor/2)
		defer cancel()
		o.Run(ctx)
		if n := api.creates.Load(); n != 2 {
			t.Errorf("made %d times, want once, and once again when the first write is not believed any more", n)
		}
		if observed != 1 {
			t.Errorf("its absence was observed %d times", observed)
		}
	})
}
