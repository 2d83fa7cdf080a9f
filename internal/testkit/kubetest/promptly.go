package kubetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/internal/testkit"
)

// steps are the requests and events of what tests wait for: an event says what happened, somebody reads it and answers
// by a write, and an event says that, which the test reads.
const steps = 5

// Promptly waits for a check as testkit.Eventually does, and fails the test if it took longer than limit. The limit is
// that of a machine which does nothing else; see Beside.
func Promptly(t testing.TB, client kubernetes.Interface, limit time.Duration, what string, check func() error) {
	t.Helper()
	beside := WriteBeside(t, client)
	defer beside.Stop()
	took := testkit.Eventually(t, 3*time.Minute, what, check)
	if late := beside.Late(); took > limit+late {
		t.Errorf("%s: after %s, want %s at most, and %s for a machine as busy as this one", what, took, limit, late)
	}
}

// Beside writes an object again and again while something else is measured. Where a machine does other things too, such
// a write takes longer, and so does what is measured.
type Beside struct {
	t      testing.TB
	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex
	most  time.Duration
	began time.Time // of the write that is under way, else zero
}

// WriteBeside starts to write, until Stop or the end of the test.
func WriteBeside(t testing.TB, client kubernetes.Interface) *Beside {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	b := &Beside{t: t, cancel: cancel, done: make(chan struct{})}
	t.Cleanup(b.Stop)
	go b.run(ctx, client)
	return b
}

// Late is what a bound in time has to allow for on this machine: what a chain of steps writes takes that are as slow as
// the slowest until now.
func (b *Beside) Late() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	most := b.most
	if !b.began.IsZero() {
		most = max(most, time.Since(b.began))
	}
	return steps * most
}

// Stop ends the writes.
func (b *Beside) Stop() {
	b.cancel()
	<-b.done
}

func (b *Beside) run(ctx context.Context, client kubernetes.Interface) {
	defer close(b.done)
	api := client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	one := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "beside-"}}
	b.write(ctx, func() error {
		made, err := api.Create(ctx, one, metav1.CreateOptions{})
		if err == nil {
			one = made
		}
		return err
	})
	if one.GetName() == "" {
		return // Late allows for that one attempt, and for no more
	}
	defer api.Delete(context.WithoutCancel(ctx), one.Name, metav1.DeleteOptions{})
	for i := 0; ; i++ {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return
		}
		next := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: one.Name}, Data: map[string]string{"i": fmt.Sprint(i)}}
		b.write(ctx, func() error { _, err := api.Update(ctx, next, metav1.UpdateOptions{}); return err })
	}
}

func (b *Beside) write(ctx context.Context, f func() error) {
	began := time.Now()
	b.mu.Lock()
	b.began = began
	b.mu.Unlock()
	err := f()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.most, b.began = max(b.most, time.Since(began)), time.Time{}
	if err != nil && ctx.Err() == nil {
		// Of an apiserver that is short of processors a write can time out. It was slow, which is what is asked for.
		b.t.Logf("a write beside, after %s: %v", time.Since(began).Round(time.Millisecond), err)
	}
}
