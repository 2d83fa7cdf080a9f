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

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// steps is the number of requests and events between a change and what a test waits for: an event reports the change, a
// client reads it and answers with a write, and the test reads the event of that write.
const steps = 5

// Promptly waits for a check as testkit.Eventually does, and fails the test if that took longer than limit. limit is
// for an idle machine; Beside measures how much more to allow.
func Promptly(t testing.TB, client kubernetes.Interface, limit time.Duration, what string, check func() error) {
	t.Helper()
	beside := WriteBeside(t, client)
	defer beside.Stop()
	took := testkit.Eventually(t, 3*time.Minute, what, check)
	if late := beside.Late(); took > limit+late {
		t.Errorf("%s: after %s, want %s at most, and %s for a machine as busy as this one", what, took, limit, late)
	}
}

// Beside repeatedly writes an object during a measurement. On a busy machine, such a write takes longer, as does what
// is measured.
type Beside struct {
	t      testing.TB
	cancel context.CancelFunc
	done   chan struct{}

	mu   sync.Mutex
	most time.Duration
	due  time.Time // when the current or next write begins; zero if there is none
}

// WriteBeside starts the writes. They end with Stop or the test.
func WriteBeside(t testing.TB, client kubernetes.Interface) *Beside {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	b := &Beside{t: t, cancel: cancel, done: make(chan struct{})}
	t.Cleanup(b.Stop)
	go b.run(ctx, client)
	return b
}

// Late returns by how much a time limit must grow on this machine: the time of a chain of steps writes, each as slow as
// the slowest one so far.
func (b *Beside) Late() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	most := b.most
	if !b.due.IsZero() {
		most = max(most, time.Since(b.due))
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
	b.write(ctx, 0, func() error {
		made, err := api.Create(ctx, one, metav1.CreateOptions{})
		if err == nil {
			one = made
		}
		return err
	})
	if one.GetName() == "" {
		return // Late allows for that one attempt only
	}
	const pause = 20 * time.Millisecond
	defer api.Delete(context.WithoutCancel(ctx), one.Name, metav1.DeleteOptions{})
	for i := 0; ; i++ {
		next := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: one.Name}, Data: map[string]string{"i": fmt.Sprint(i)}}
		if !b.write(ctx, pause, func() error { _, err := api.Update(ctx, next, metav1.UpdateOptions{}); return err }) {
			return
		}
	}
}

// write writes after a time, and measures from when that was over: a process that gets no CPU time until later is late,
// too. It reports whether ctx has not ended before.
func (b *Beside) write(ctx context.Context, after time.Duration, f func() error) bool {
	due := time.Now().Add(after)
	b.mu.Lock()
	b.due = due
	b.mu.Unlock()
	select {
	case <-time.After(after):
	case <-ctx.Done():
		return false
	}
	err := f()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.most, b.due = max(b.most, time.Since(due)), time.Time{}
	if err != nil && ctx.Err() == nil {
		// A write can time out at an apiserver that lacks CPU time. That counts as a slow write.
		b.t.Logf("a write beside, after %s: %v", time.Since(due).Round(time.Millisecond), err)
	}
	return true
}
