package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/test/e2e"
	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// leaseDuration is the default.
const leaseDuration = 15 * time.Second

// asleep is how long a leader is stopped: long enough that another leads and has written.
const asleep = leaseDuration + 7*time.Second

// standbys fails the test unless a part has two replicas, one of them leading.
func standbys(t *testing.T, c *testbed.Cluster, name string) {
	t.Helper()
	eventually(t, settle, func(ctx context.Context) error {
		pods, err := e2e.Part(ctx, c, name)
		if err != nil {
			return err
		}
		if len(pods) != 2 {
			return fmt.Errorf("%d replicas of the %s, want 2", len(pods), name)
		}
		_, err = active(ctx, c, name)
		return err
	})
}

// transitions returns the number of transitions of a Lease, and its holder.
func transitions(ctx context.Context, c *testbed.Cluster, lease string) (int32, string, error) {
	l, err := c.Client.CoordinationV1().Leases(e2e.Namespace).Get(ctx, lease, metav1.GetOptions{})
	if err != nil {
		return 0, "", err
	}
	if l.Spec.LeaseTransitions == nil || l.Spec.HolderIdentity == nil {
		return 0, "", errors.New("nobody holds the lease")
	}
	return *l.Spec.LeaseTransitions, *l.Spec.HolderIdentity, nil
}

// The leader cannot reach its apiserver. It stops before another can hold its Lease, another leads, and nothing is
// written twice, lost or re-created.
func TestF23_LeaderLosesItsLease(t *testing.T) {
	tier.OnlyAll(t, "TestF24_StoppedLeaderIsResumed; TestElection, TestGuard (internal/kube/leader)")
	b := onBed(t)
	standbys(t, b.c1, "broker")
	g := b.watch(t)
	old := waitActive(t, b.c1, "broker")
	before, holder, err := transitions(t.Context(), b.c1, "semaphore-broker-leader")
	testkit.Must(t, err)
	process := processOf(old)
	_, mend := cutOffFromAPIServer(t, old)
	cut := time.Now()
	beside := kubetest.WriteBeside(t, b.c1.Client)
	// stopped is when the old leader stopped working, according to its status; taken is when another held the Lease.
	var stopped, taken time.Duration
	eventually(t, settle, func(ctx context.Context) error {
		if stopped == 0 {
			anothers := taken
			var page bytes.Buffer
			if process.ended() || get(ctx, old.Netns, "/readyz", &page) != nil || strings.Contains(page.String(), "standby") {
				stopped = time.Since(cut)
			} else if anothers > 0 {
				t.Errorf("the old leader works after %s, and the lease was another's after %s", seconds(time.Since(cut)),
					seconds(anothers))
			}
		}
		if taken == 0 {
			_, now, err := transitions(ctx, b.c1, "semaphore-broker-leader")
			if err != nil {
				return err
			}
			if now != holder {
				taken = time.Since(cut)
			}
		}
		if stopped == 0 || taken == 0 {
			return fmt.Errorf("stopped after %s, taken after %s", stopped, taken)
		}
		return nil
	})
	late := beside.Late()
	beside.Stop()
	if most := leaseDuration + 10*time.Second; taken > most+late {
		t.Errorf("nobody led for %s, want at most %s, and %s for a machine as busy as this one", seconds(taken),
			seconds(most), seconds(late))
	}
	g.untouched()
	// The new leader works while the old one is still cut off.
	t.Cleanup(func() { testkit.NoError(t, withdraw(life, b.c2, "while-deposed")) })
	g.allow(func(c *testbed.Cluster, ch change) bool { return c == b.c1 && ch.managed && ch.op == "create" })
	testkit.Must(t, offer(t.Context(), b.c2, "while-deposed", 901))
	eventually(t, settle, func(ctx context.Context) error {
		_, err := b.c1.Client.CoreV1().Services(e2e.Namespace).Get(ctx, "c2-shop-73736d-while-deposed", metav1.GetOptions{})
		return err
	})
	worked := time.Since(cut)
	mend()
	took := b.converges(t, settle)
	pause(t, 3*time.Second)
	eventually(t, settle, func(ctx context.Context) error { return e2e.CallsReachLeader(ctx, b.c1) })
	after, _, err := transitions(t.Context(), b.c1, "semaphore-broker-leader")
	testkit.Must(t, err)
	if after != before+1 {
		t.Errorf("the lease changed hands %d times, want once", after-before)
	}
	if n := len(g.sofar(b.c1)); n != 2 {
		t.Errorf("%d objects were written, want the mirror and the slice of one Service", n)
	}
	t.Logf("cut off from its apiserver the leader stopped after %s, the lease was another's after %s, who wrote after "+
		"%s; whole %s after the repair; %s",
		seconds(stopped), seconds(taken), seconds(worked), seconds(took), g.finish())
}

// The leader is stopped for longer than its Lease and continues when another leads. It writes nothing more and exits.
// The Lease changes hands once.
func TestF24_StoppedLeaderIsResumed(t *testing.T) {
	b := onBed(t)
	for _, which := range []struct {
		c          *testbed.Cluster
		name, word string
	}{{b.c1, "broker", "the broker that writes"}, {b.c2, "exporter", "the exporter that publishes"}} {
		t.Run(which.name, func(t *testing.T) {
			standbys(t, which.c, which.name)
			b.converges(t, settle)
			g := b.watch(t)
			lease := "semaphore-" + which.name + "-leader"
			before, holder, err := transitions(t.Context(), which.c, lease)
			testkit.Must(t, err)
			old := processOf(waitActive(t, which.c, which.name))
			testkit.Must(t, old.signal(syscall.SIGSTOP))
			running := false
			goOn := func() {
				if !running {
					running = true
					testkit.NoError(t, old.signal(syscall.SIGCONT))
				}
			}
			t.Cleanup(goOn)
			stopped := time.Now()
			takeover := eventually(t, settle, func(ctx context.Context) error {
				_, now, err := transitions(ctx, which.c, lease)
				if err == nil && now == holder {
					err = errors.New("it still holds the lease")
				}
				return err
			})
			g.untouched()
			// The new leader has to write these changes. The old leader then continues with its earlier state. Its informers
			// deliver the new mirrors first, before it knows their sources.
			const offered = 5
			g.allow(func(c *testbed.Cluster, ch change) bool { return c == b.c1 && ch.managed && ch.op == "create" })
			mirrored := func(name string, id int) {
				t.Cleanup(func() { testkit.NoError(t, withdraw(life, b.c2, name)) })
				testkit.Must(t, offer(t.Context(), b.c2, name, id))
				eventually(t, settle, func(ctx context.Context) error {
					_, err := b.c1.Client.CoreV1().Services(e2e.Namespace).Get(ctx, "c2-shop-73736d-"+name, metav1.GetOptions{})
					return err
				})
			}
			for i := range offered {
				mirrored(fmt.Sprintf("while-stopped-%s-%d", which.name, i), 920+i)
			}
			// Wait longer than every timeout of the Lease.
			pause(t, asleep-time.Since(stopped))
			goOn()
			woken := time.Now()
			for !old.ended() && time.Since(woken) < settle {
				pause(t, 10*time.Millisecond)
			}
			ended := time.Since(woken)
			if !old.ended() {
				t.Errorf("%s was deposed and has not ended %s after it continued", which.word, settle)
			}
			took := b.converges(t, settle)
			// The old process has ended. Its writes are before this in every watch of the apiserver.
			mirrored("marker-"+which.name, 920+offered)
			b.converges(t, settle)
			eventually(t, settle, func(ctx context.Context) error { return e2e.CallsReachLeader(ctx, b.c1) })
			after, _, err := transitions(t.Context(), which.c, lease)
			testkit.Must(t, err)
			if after != before+1 {
				t.Errorf("the lease changed hands %d times, want once", after-before)
			}
			if n := len(g.sofar(b.c1)); n != 2*(offered+1) {
				t.Errorf("%d objects were written, want the mirrors and the slices of %d Services", n, offered+1)
			}
			t.Logf("another led after %s; the old one continued after %s and ended %s later, having written nothing; whole %s "+
				"after that; %s",
				seconds(takeover), seconds(asleep), seconds(ended), seconds(took), g.finish())
		})
	}
}
