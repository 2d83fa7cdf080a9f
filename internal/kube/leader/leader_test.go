package leader

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testbed/proxy"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

func TestMain(m *testing.M) {
	loopback.Enter(kubetest.Prepare)
	// The cases of TestElection wait for leases, so all run in parallel whatever the number of CPUs.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(kubetest.Reusing(m))
}

const (
	// duration is long enough for a busy machine: if an apiserver takes deadline to answer a renewal, a leader loses
	// its lease.
	duration = 24 * time.Second
	deadline = duration * 2 / 3
	// look is the longest interval between two checks of a standby: client-go adds up to 1.2 times the period.
	look = duration * 2 / 15 * 22 / 10
	// slack allows for a busy machine. It applies only to events that may be late, never to events that must not be
	// early.
	slack = 3 * time.Second
)

// beside measures how much later than slack events may be on this machine.
var beside *kubetest.Beside

// must ends the test on an error.
var must = testkit.Must

// candidate is a replica in the election, with the times of its work's events.
type candidate struct {
	t        *testing.T
	name     string
	elector  *Elector
	stop     context.CancelFunc
	began    chan begun
	demanded chan time.Time // the request to end
	ended    chan time.Time
	result   chan error
	logged   *testkit.Buffer
	looks    atomic.Int64 // reads of the Lease

	toEnd    time.Duration // the time that the work takes to end
	failWith chan error
}

type begun struct {
	at   time.Time
	term uint64
}

// start starts a replica that takes part in the election until the test ends.
func start(t *testing.T, name, lease string, cfg *rest.Config, toEnd time.Duration) *candidate {
	t.Helper()
	c := &candidate{
		t: t, name: name, toEnd: toEnd, logged: &testkit.Buffer{}, failWith: make(chan error, 1),
		began: make(chan begun, 1), demanded: make(chan time.Time, 1), ended: make(chan time.Time, 1),
		result: make(chan error, 1),
	}
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return kubetest.RoundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodGet {
				c.looks.Add(1)
			}
			return next.RoundTrip(r)
		})
	})
	election := config.LeaderElection{Enabled: true, Namespace: "default", Lease: lease,
		Duration: config.Duration{Duration: duration}}
	var err error
	c.elector, err = New(Options{Config: election, Rest: cfg, Registry: prometheus.NewRegistry(),
		Log: slog.New(slog.NewTextHandler(c.logged, nil))})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	c.stop = cancel
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.result <- c.elector.Run(ctx, c.work)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, c.logged)
		}
	})
	return c
}

func (c *candidate) work(ctx context.Context, term uint64) error {
	c.began <- begun{time.Now(), term}
	select {
	case err := <-c.failWith:
		return err
	case <-ctx.Done():
	}
	c.demanded <- time.Now()
	time.Sleep(c.toEnd)
	c.ended <- time.Now()
	return ctx.Err()
}

// receive returns the next value.
func receive[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(3 * time.Minute):
		t.Fatalf("not within three minutes: %s", what)
		panic("unreachable")
	}
}

// leads waits until c leads. It must not let pass the looks at the Lease that it makes within a time.
func (c *candidate) leads(within time.Duration) begun {
	c.t.Helper()
	return c.leadsAfter(int64(within/c.elector.retryPeriod()) + 3)
}

// succeeds waits until c leads. The Lease was released: the next look finds that, and one may have been under way.
func (c *candidate) succeeds() begun {
	c.t.Helper()
	return c.leadsAfter(2)
}

// leadsAfter waits until c leads, after a number of looks at the Lease at most.
func (c *candidate) leadsAfter(most int64) begun {
	c.t.Helper()
	before := c.looks.Load()
	b := receive(c.t, c.name+" leads", c.began)
	if n := c.looks.Load() - before; n > most {
		c.t.Errorf("%s leads after %d looks at the Lease, want %d at most", c.name, n, most)
	}
	return b
}

func (c *candidate) status() *semaphorev1.GetStatusResponse {
	s := &semaphorev1.GetStatusResponse{}
	leads, problem := c.elector.Status(s)
	if leads == s.GetStandby() {
		c.t.Errorf("leads is %t, the status %v", leads, s)
	}
	s.Problems = finding.Texts(finding.Line(finding.LeaseFailed, "", problem))
	return s
}

func (c *candidate) standsBy(leader *candidate) {
	c.t.Helper()
	holder := replica(leader.elector.lock.Identity())
	within(c.t, c.name+" is a standby", func() bool {
		err, s := c.elector.Standby(), c.status()
		return err != nil && err.Error() == "standby: "+holder+" leads" && s.GetStandby() && s.GetLeader() == holder &&
			len(s.GetProblems()) == 0
	})
}

// pair starts a leader, whose work takes a time to end, and a standby.
func pair(t *testing.T, lease string, of, other *rest.Config, toEnd time.Duration) (leader, standby *candidate) {
	t.Helper()
	leader = start(t, "a", lease, of, toEnd)
	leader.leads(slack)
	standby = start(t, "b", lease, other, 0)
	standby.standsBy(leader)
	return leader, standby
}

// takes waits until c leads, which must be after another's work has ended.
func (c *candidate) takes(ended time.Time) (taken time.Time) {
	c.t.Helper()
	if taken = c.leads(duration + look + slack).at; !taken.After(ended) {
		c.t.Errorf("%s began %s before the work had ended", c.name, ended.Sub(taken))
	}
	return taken
}

func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	testkit.Eventually(t, 3*time.Minute, what, testkit.True(ok))
}

// TestElection runs its cases against one apiserver, each with its own Lease.
func TestElection(t *testing.T) {
	api := kubetest.Start(t)
	client := kubernetes.NewForConfigOrDie(api)
	beside = kubetest.WriteBeside(t, client)
	for name, run := range map[string]func(*testing.T, *rest.Config, kubernetes.Interface){
		"clean stop":                      testCleanStop,
		"F18 skewed clocks":               testSkewedClocks,
		"F23 cut from the apiserver":      testCutOff,
		"F23 rights taken away":           testRightsTakenAway,
		"F23 work that does not end":      testWorkThatDoesNotEnd,
		"answers that come late":          testLateAnswers,
		"lease written by others":         testWrittenByOthers,
		"work that fails":                 testWorkThatFails,
		"stopped as a standby":            testStoppedStandby,
		"released slowly":                 testReleasedSlowly,
		"released beside a late renewal":  testLateRenewal,
		"a stale leader writes the lease": testStaleWrite,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, api, client)
		})
	}
}

// testCleanStop: a leader that is asked to stop keeps the lease until its work has ended, however long that takes, and
// no longer.
func testCleanStop(t *testing.T, api *rest.Config, client kubernetes.Interface) {
	const toEnd = duration + time.Second
	a := start(t, "a", "clean", api, toEnd)
	if first := a.leads(slack); first.term != 1 {
		t.Errorf("the first term is %d", first.term)
	}
	if err, s := a.elector.Standby(), a.status(); err != nil || s.GetStandby() || s.GetLeader() == "" ||
		len(s.GetProblems()) > 0 {
		t.Errorf("the leader says %v, %v", err, s)
	}
	b := start(t, "b", "clean", api, 0)
	b.standsBy(a)

	a.stop()
	ended := receive(t, "the end of a's work", a.ended)
	if err := receive(t, "a's end", a.result); !errors.Is(err, context.Canceled) || errors.Is(err, ErrDeposed) {
		t.Errorf("a ended with %v", err)
	}
	second := b.succeeds()
	if second.at.Before(ended) {
		t.Errorf("b began %s before a's work had ended", ended.Sub(second.at))
	}
	t.Logf("b began %s after a's work had ended", second.at.Sub(ended))
	if second.term != 2 {
		t.Errorf("the second term is %d", second.term)
	}
	b.stop()
	receive(t, "b's end", b.result)
	lease := get(t, client, "clean")
	if holder := lease.Spec.HolderIdentity; holder != nil && *holder != "" {
		t.Errorf("the lease is still %s's", *holder)
	}
	if lease.Labels["app.kubernetes.io/name"] != "semaphore" {
		t.Errorf("labels %v", lease.Labels)
	}
}

// frequently is an interval of renewals that is far shorter than an answer may take.
const frequently = 100 * time.Millisecond

// releases runs an election that renews frequently until ctx ends, and checks that the Lease is nobody's then. began is
// called when the work begins.
func releases(ctx context.Context, t *testing.T, api *rest.Config, client kubernetes.Interface, lease string,
	began func()) {
	t.Helper()
	e, err := New(Options{Config: config.LeaderElection{Enabled: true, Namespace: "default", Lease: lease,
		Duration: config.Duration{Duration: duration}, Renew: frequently}, Rest: api, Registry: prometheus.NewRegistry(),
		Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	e.releaseWithin = time.Minute // an apiserver that gets no CPU time may take more than five seconds
	err = e.Run(ctx, func(ctx context.Context, _ uint64) error {
		began()
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	if holder := get(t, client, lease).Spec.HolderIdentity; holder != nil && *holder != "" {
		t.Errorf("the lease is still %s's", *holder)
	}
}

// testReleasedSlowly: the Lease is also released if the apiserver takes longer to answer than renewals are apart. The
// next leader would wait for its expiry otherwise.
func testReleasedSlowly(t *testing.T, api *rest.Config, client kubernetes.Interface) {
	ctx, stop := context.WithCancel(t.Context())
	api = rest.CopyConfig(api)
	api.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return kubetest.RoundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPut && ctx.Err() != nil {
				if err := kube.Sleep(r.Context(), 10*frequently); err != nil {
					return nil, err
				}
			}
			return next.RoundTrip(r)
		})
	})
	releases(ctx, t, api, client, "released-slowly", stop)
}

// testLateRenewal: the Lease is also released if the last renewal, which the end of the election cancels, is written
// after the Lease was read to be released.
func testLateRenewal(t *testing.T, api *rest.Config, client kubernetes.Interface) {
	ctx, stop := context.WithCancel(t.Context())
	renewals, reads, late, written := 0, 0, make(chan struct{}), make(chan error)
	api = rest.CopyConfig(api)
	api.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return kubetest.RoundTripper(func(r *http.Request) (*http.Response, error) {
			switch {
			case r.Method == http.MethodPut && renewals == 0:
				renewals++
				stop()
				<-r.Context().Done()
				go func() {
					<-late
					resp, err := next.RoundTrip(r.Clone(context.WithoutCancel(r.Context())))
					if err == nil {
						resp.Body.Close()
					}
					written <- err
				}()
				return nil, r.Context().Err()
			case r.Method == http.MethodGet && ctx.Err() != nil && reads == 0:
				reads++
				defer func() {
					close(late)
					must(t, <-written)
				}()
			}
			return next.RoundTrip(r)
		})
	})
	releases(ctx, t, api, client, "late-renewal", func() {})
}

// testSkewedClocks (part of F18): a replica judges the age of a lease by when it saw the last change, and not by the
// time that the holder wrote, which may be wrong.
func testSkewedClocks(t *testing.T, api *rest.Config, client kubernetes.Interface) {
	for name, skew := range map[string]time.Duration{"none": 0, "ahead": 10 * time.Minute, "behind": -10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := metav1.NewMicroTime(time.Now().Add(skew))
			holder, seconds, transitions := "dead_1", int32(duration/time.Second), int32(6)
			kubetest.Create(t, client.CoordinationV1().Leases("default"), &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: "skew-" + name},
				Spec: coordinationv1.LeaseSpec{
					HolderIdentity: &holder, LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now,
					LeaseTransitions: &transitions,
				},
			})
			began := time.Now()
			a := start(t, "a", "skew-"+name, api, 0)
			within(t, "a knows the holder", func() bool { return a.status().GetLeader() == "dead" })
			b := a.leads(duration + look + slack)
			if waited := b.at.Sub(began); waited < duration {
				t.Errorf("took over after %s, before the lease of %s was over", waited, duration)
			} else {
				t.Logf("took over after %s", waited)
			}
			if b.term != 8 { // 7 transitions, plus 1
				t.Errorf("term %d; want 8", b.term)
			}
		})
	}
}

// testCutOff (F23): a leader that cannot reach the apiserver ends its work before another replica can acquire the
// lease.
func testCutOff(t *testing.T, api *rest.Config, _ kubernetes.Interface) {
	for name, conditions := range map[string]proxy.Conditions{"silent": {Stall: true}, "refused": {Refuse: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			through, network := kubetest.Through(t, api)
			const toEnd = 500 * time.Millisecond
			a, b := pair(t, "cut-"+name, through, api, toEnd)
			time.Sleep(duration) // it is renewed in this time
			began := time.Now()
			network.Set(conditions)
			if conditions.Refuse {
				network.Reset()
			}
			demanded := receive(t, "the end of a's work is demanded", a.demanded)
			ended := receive(t, "a's work ends", a.ended)
			taken := b.takes(ended)
			t.Logf("asked to end %s after the cut, ended after %s, b began after %s", demanded.Sub(began), ended.Sub(began),
				taken.Sub(began))
			if err := receive(t, "a's end", a.result); !errors.Is(err, ErrDeposed) ||
				!strings.Contains(err.Error(), "lease default/cut-"+name+": no longer the leader: not renewed for "+
					deadline.String()) {
				t.Errorf("a ended with %v", err)
			}
			if err := a.elector.Standby(); err == nil {
				t.Error("a still says that it leads")
			}
		})
	}
}

// testRightsTakenAway (F23, by another cause): the leader loses its rights on the Lease.
func testRightsTakenAway(t *testing.T, api *rest.Config, client kubernetes.Interface) {
	ctx := t.Context()
	role := kubetest.Create(t, client.RbacV1().Roles("default"), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "leader"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create"}},
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{"rights"},
				Verbs: []string{"get", "update"}},
		},
	})
	as := rest.CopyConfig(api)
	as.Impersonate.UserName = "replica"

	a := start(t, "a", "rights", as, 0)
	within(t, "a says what it lacks", func() bool {
		err := a.elector.Standby()
		return err != nil && strings.Contains(
			err.Error(),
			`standby: the leader is not known: lease default/rights: cannot get it: leases.coordination.k8s.io "rights" is `+
				`forbidden`,
		)
	})
	kubetest.Create(t, client.RbacV1().RoleBindings("default"), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "leader"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role",
			Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "replica"}},
	})
	a.leads(look + slack) // with exactly these rights
	b := start(t, "b", "rights", api, 0)
	b.standsBy(a)
	must(t, client.RbacV1().RoleBindings("default").Delete(ctx, "leader", metav1.DeleteOptions{}))
	ended := receive(t, "a's work ends", a.ended)
	b.takes(ended)
	if err := receive(t, "a's end", a.result); !errors.Is(err, ErrDeposed) ||
		!strings.Contains(err.Error(), "is forbidden") {
		t.Errorf("a ended with %v", err)
	}
	// The problem is logged when it begins, and not at each attempt. A slow apiserver may cause more than these two
	// lines.
	logged := a.logged.String()
	began, over := strings.Count(logged, "has a problem"), strings.Count(logged, "works again")
	if began < 2 || began != over+1 {
		t.Errorf("two problems are logged %d times, and %d times that it works again", began, over)
	}
}

// testWorkThatDoesNotEnd: only the end of the process ends work that does not end when it is asked to, so Run returns
// while the lease holds.
func testWorkThatDoesNotEnd(t *testing.T, api *rest.Config, _ kubernetes.Interface) {
	through, network := kubetest.Through(t, api)
	a, b := pair(t, "endless", through, api, duration*2)
	network.Set(proxy.Conditions{Stall: true})
	err := receive(t, "a's end", a.result)
	select {
	case <-b.began:
		t.Error("b had begun before")
	default:
	}
	if !errors.Is(err, ErrDeposed) || !strings.HasSuffix(err.Error(), "; the work does not end") {
		t.Errorf("a ended with %v", err)
	}
	b.leads(look + slack)
	receive(t, "the end of a's work, for the test", a.ended)
}

// late answers PUTs late, and later not at all.
type late struct {
	http.RoundTripper
	after  atomic.Bool // no further answers
	newest atomic.Int64
}

func (l *late) RoundTrip(r *http.Request) (*http.Response, error) {
	if l.after.Load() {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	began := time.Now()
	response, err := l.RoundTripper.RoundTrip(r)
	if r.Method == http.MethodPut && err == nil {
		time.Sleep(1200 * time.Millisecond)
		l.newest.Store(began.UnixNano())
	}
	return response, err
}

// testLateAnswers: the lease counts from when the apiserver wrote it. An answer that comes much later does not extend
// the work.
func testLateAnswers(t *testing.T, api *rest.Config, client kubernetes.Interface) {
	slow := rest.CopyConfig(api)
	network := &late{}
	slow.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		network.RoundTripper = rt
		return network
	})
	a, b := pair(t, "late", slow, api, 0)
	time.Sleep(2 * time.Second)
	before := network.newest.Load()
	within(t, "a renews", func() bool { return network.newest.Load() != before })
	network.after.Store(true)
	demanded := receive(t, "the end of a's work is demanded", a.demanded)
	newest := time.Unix(0, network.newest.Load())
	if since := demanded.Sub(newest); since > deadline+500*time.Millisecond+beside.Late() {
		t.Errorf("a was asked to end %s after it had begun to renew; want %s", since, deadline)
	} else {
		t.Logf("a was asked to end %s after it had begun to renew", since)
	}
	ended := receive(t, "a's work ends", a.ended)
	b.takes(ended)
}

func get(t *testing.T, client kubernetes.Interface, name string) *coordinationv1.Lease {
	t.Helper()
	lease := kubetest.Get(t, client.CoordinationV1().Leases("default"), name)
	return lease
}

// overwrite sets the holder, as a user of kubectl could.
func overwrite(t *testing.T, client kubernetes.Interface, name, holder string) {
	t.Helper()
	within(t, "the lease is overwritten", func() bool {
		lease := get(t, client, name)
		now := metav1.NewMicroTime(time.Now())
		lease.Spec.HolderIdentity, lease.Spec.RenewTime = &holder, &now
		if holder == "" {
			lease.Spec.HolderIdentity = nil
		}
		*lease.Spec.LeaseTransitions++
		_, err := client.CoordinationV1().Leases("default").Update(t.Context(), lease, metav1.UpdateOptions{})
		return err == nil
	})
}

// testWrittenByOthers: a leader that is no longer the holder ends immediately. One whose Lease is deleted creates it
// again, and terms continue.
func testWrittenByOthers(t *testing.T, api *rest.Config, client kubernetes.Interface) {
	for holder, want := range map[string]string{"other_1": "other has it", "": "somebody has emptied it"} {
		t.Run("holder "+holder, func(t *testing.T) {
			t.Parallel()
			name := "overwritten" + strings.TrimSuffix(holder, "_1")
			a := start(t, "a", name, api, 0)
			a.leads(slack)
			overwrite(t, client, name, holder)
			if err := receive(t, "a's end", a.result); !errors.Is(err, ErrDeposed) ||
				!strings.HasSuffix(err.Error(), want) {
				t.Errorf("a ended with %v; want %q", err, want)
			}
			if lease := get(t, client, name); holder != "" && *lease.Spec.HolderIdentity != holder {
				t.Errorf("the lease is %s's", *lease.Spec.HolderIdentity)
			}
		})
	}
	t.Run("deleted", func(t *testing.T) {
		t.Parallel()
		a, b := pair(t, "deleted", api, api, 0)
		a.stop()
		if second := b.leads(look + slack); second.term != 2 {
			t.Errorf("term %d", second.term)
		}
		must(t, client.CoordinationV1().Leases("default").Delete(t.Context(), "deleted", metav1.DeleteOptions{}))
		within(t, "it is there again", func() bool {
			_, err := client.CoordinationV1().Leases("default").Get(t.Context(), "deleted", metav1.GetOptions{})
			return err == nil
		})
		time.Sleep(duration / 2)
		if err := b.elector.Standby(); err != nil {
			t.Errorf("b no longer leads: %v", err)
		}
		c := start(t, "c", "deleted", api, 0)
		c.standsBy(b)
		must(t, client.CoordinationV1().Leases("default").Delete(t.Context(), "deleted", metav1.DeleteOptions{}))
		b.stop()
		if third := c.leads(look + slack); third.term != 3 {
			t.Errorf("term %d after a deleted lease; want 3", third.term)
		}
	})
}

// testWorkThatFails: Run returns the error of the work, and the next replica need not wait.
func testWorkThatFails(t *testing.T, api *rest.Config, _ kubernetes.Interface) {
	a, b := pair(t, "fails", api, api, 0)
	a.failWith <- errors.New("no room")
	if err := receive(t, "a's end", a.result); err == nil || err.Error() != "no room" {
		t.Errorf("a ended with %v", err)
	}
	b.succeeds()
}

// testStoppedStandby: a standby that is asked to stop returns, and does not change the lease.
func testStoppedStandby(t *testing.T, api *rest.Config, client kubernetes.Interface) {
	a, b := pair(t, "standby", api, api, 0)
	b.stop()
	if err := receive(t, "b's end", b.result); !errors.Is(err, context.Canceled) {
		t.Errorf("b ended with %v", err)
	}
	if holder := *get(t, client, "standby").Spec.HolderIdentity; holder != a.elector.lock.Identity() {
		t.Errorf("the lease is %s's", holder)
	}
	if err := a.elector.Standby(); err != nil {
		t.Errorf("a: %v", err)
	}
}

// testStaleWrite: a replica that was suspended during a renewal, and resumes when another one has the lease, does not
// acquire it.
func testStaleWrite(t *testing.T, api *rest.Config, client kubernetes.Interface) {
	a := start(t, "a", "stale", api, 0)
	a.leads(slack)
	stale := newLease(client.CoordinationV1(), "default", "stale", a.elector.lock.Identity(), slog.Default()).LeaseLock
	record, _, err := stale.Get(t.Context()) // the present Lease
	must(t, err)
	a.stop()
	receive(t, "a's end", a.result)
	b := start(t, "b", "stale", api, 0)
	b.leads(look + slack)
	if err := stale.Update(t.Context(), *record); err == nil {
		t.Error("the stale replica has the lease again")
	}
	if holder := *get(t, client, "stale").Spec.HolderIdentity; holder != b.elector.lock.Identity() {
		t.Errorf("the lease is %s's", holder)
	}
}

// TestElectionOff: without election there is no Lease and no term, and no request to an apiserver.
func TestElectionOff(t *testing.T) {
	registry := prometheus.NewRegistry()
	e, err := New(Options{Registry: registry, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	must(t, err)
	if err := e.Standby(); err == nil {
		t.Error("it works before it runs")
	}
	ran := errors.New("ran")
	err = e.Run(t.Context(), func(_ context.Context, term uint64) error {
		s := &semaphorev1.GetStatusResponse{}
		leads, problem := e.Status(s)
		if err := e.Standby(); term != 0 || err != nil || !leads || s.GetStandby() || s.GetLeader() != "" || problem != "" {
			t.Errorf("term %d, %v, status %v, problem %q", term, err, s, problem)
		}
		return ran
	})
	if err != ran {
		t.Errorf("ended with %v", err)
	}
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	e := testkit.Value(New(Options{Registry: registry}))(t)
	check := func(want map[string]float64) {
		t.Helper()
		families := testkit.Value(registry.Gather())(t)
		got := map[string]float64{}
		for _, f := range families {
			got[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
		}
		if !maps.Equal(got, want) {
			t.Errorf("metrics %v; want %v", got, want)
		}
	}
	check(map[string]float64{"semaphore_leader": 0, "semaphore_leader_term": 0})
	e.working.Store(true)
	e.term.Store(7)
	check(map[string]float64{"semaphore_leader": 1, "semaphore_leader_term": 7})
}
