// Package leader lets one of several replicas work, routes calls to it, and keeps the state that the next one needs:
// brokers and exporters elect it with a Lease (coordination.k8s.io/v1) and client-go's tools/leaderelection.
//
// It adds what client-go leaves to its users: the work has ended before another replica may begin. The library counts
// time from the receipt of a response; this package counts from the start of the request, because the lease starts
// somewhere between. A leader that is asked to stop releases the Lease only after its work has ended, and one that
// cannot renew it has a third of the lease's duration left for that.
//
// Guard refuses the writes of a replica whose lease another one may have by now. It is no fence: a process that is
// suspended in the middle of a write and resumes after its lease has passed to another makes that write. The write is
// harmless because it carries the version that it changes, of before the suspension. (Fields that people read carry the
// UID alone: the status of a RemoteCluster, and the annotation of a Service that is offered.)
//
// The package knows the apiserver and nothing of the work.
package leader

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/kube"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// ErrDeposed is the error of work whose lease was lost. The process should end too, because it may hold much state of
// the work; it starts again as a standby.
var ErrDeposed = errors.New("no longer the leader")

// errWorkStuck is returned, joined with ErrDeposed, for deposed work that does not end.
var errWorkStuck = errors.New("the work does not end")

// Work is what only one replica does at a time. It returns soon after ctx ends, and has ended when it returns. term is
// Lease.spec.leaseTransitions + 1, so a later leader has a greater one; without election it is 0.
type Work func(ctx context.Context, term uint64) error

type Options struct {
	Config config.LeaderElection
	// Rest is the access to the apiserver that stores the Lease. It is not needed if election is off.
	Rest     *rest.Config
	Registry prometheus.Registerer
	Log      *slog.Logger
}

// Elector takes part in the election for one replica.
type Elector struct {
	options Options
	// lock is nil if election is off.
	lock *lease
	// term is the term of the running work; the second field is whether any work runs.
	term    atomic.Uint64
	working atomic.Bool
	// releaseWithin bounds the requests that release the Lease.
	releaseWithin time.Duration
}

// New returns an elector. It sends no request yet. With election, it fails if it cannot learn its namespace or use
// options.Rest.
func New(options Options) (*Elector, error) {
	e := &Elector{options: options, releaseWithin: answer}
	if options.Config.Enabled {
		namespace, err := kube.Namespace(options.Config.Namespace)
		if err != nil {
			return nil, err
		}
		identity, err := newIdentity()
		if err != nil {
			return nil, err
		}
		// Renewals must not wait: they need a client of their own, without the queue of the part's other requests, and
		// with a timeout.
		cfg := rest.CopyConfig(options.Rest)
		cfg.QPS, cfg.RateLimiter, cfg.Timeout = -1, nil, e.renewDeadline()/2
		client, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return nil, fmt.Errorf("client for the apiserver, for leader election: %w", err)
		}
		e.lock = newLease(client.CoordinationV1(), namespace, options.Config.Lease, identity, options.Log)
	}
	options.Registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "semaphore_leader", Help: "1 while this replica does the work, 0 while it is a standby.",
		}, func() float64 {
			if e.working.Load() {
				return 1
			}
			return 0
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "semaphore_leader_term",
			Help: "Which leader this replica is, counted from 1 since the Lease was made; 0 for none, or without election.",
		}, func() float64 { return float64(e.term.Load()) }),
	)
	return e, nil
}

// Of returns the elector of a part ("broker", "exporter") with this configuration. The Lease is in the cluster in which
// the process runs, even if the part reads another cluster; outside of a cluster it is in the one that kube refers to.
// Of fails as New does, and if the access to that cluster cannot be used.
func Of(part string, election config.LeaderElection, c config.Kube, registry prometheus.Registerer,
	log *slog.Logger) (e *Elector, err error) {
	options := Options{Config: election, Registry: registry, Log: log}
	if election.Enabled {
		if options.Rest, err = clientConfig(c, part); err != nil {
			return nil, err
		}
	}
	return New(options)
}

// clientConfig returns the access to the apiserver that stores the Lease. It is the cluster in which this process runs,
// so that an exporter that reads another cluster writes nothing there.
func clientConfig(c config.Kube, part string) (*rest.Config, error) {
	cfg, err := kube.Config(c.Own(), part)
	if errors.Is(err, rest.ErrNotInCluster) {
		return kube.Config(c, part)
	}
	if err != nil {
		return nil, fmt.Errorf("leader election uses the ServiceAccount of the pod (or switch it off: "+
			"leaderElection.enabled): %w", err)
	}
	return cfg, nil
}

// newIdentity returns an identity that differs from that of all other processes, including earlier ones in the same
// pod: their lease must expire like any other.
func newIdentity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("name of this replica for leader election: %w", err)
	}
	return host + "_" + rand.Text(), nil
}

// replica returns the host name in an identity.
func replica(identity string) string {
	if i := strings.LastIndexByte(identity, '_'); i > 0 {
		return identity[:i]
	}
	return identity
}

func (e *Elector) duration() time.Duration { return e.options.Config.Duration.Duration }

// renewDeadline is the age of the last renewal at which the leader ends its work. The rest of the duration, a third, is
// the time that it has for this.
func (e *Elector) renewDeadline() time.Duration { return e.duration() * 2 / 3 }

// retryPeriod is the interval of renewals. A standby checks the Lease up to 2.2 times less often, because client-go
// adds jitter.
func (e *Elector) retryPeriod() time.Duration {
	return cmp.Or(e.options.Config.Renew, e.duration()*2/15)
}

// Standby returns nil while this replica works. Otherwise the error names the leader.
func (e *Elector) Standby() error {
	if e.working.Load() {
		return nil
	}
	if e.lock == nil {
		return errors.New("not started yet")
	}
	switch is := e.lock.now(); {
	case is.problem != "":
		return fmt.Errorf("standby: the leader is not known: %s", is.problem)
	case is.holder == "" || is.holder == e.lock.Identity():
		return errors.New("standby: nobody leads yet")
	default:
		return fmt.Errorf("standby: %s leads", replica(is.holder))
	}
}

// Ready returns nil if this replica works or can take over, and otherwise an error with the reason; note describes a
// standby. A leader is ready if its work is. A standby is ready once it has seen the leader renew the lease: then it
// reaches the apiserver, may read the Lease, and will notice when renewals end. The leader's health is no condition:
// otherwise a standby could never replace an unhealthy leader.
func (e *Elector) Ready(working func() error) (note string, err error) {
	standby := e.Standby()
	if standby == nil {
		return "", working()
	}
	if e.lock == nil {
		return "", standby
	}
	switch is := e.lock.now(); {
	case is.problem != "":
		return "", finding.Because(fmt.Errorf("standby: cannot take over: %s", is.problem),
			finding.Line(finding.LeaseFailed, "", is.problem)...)
	case !is.followed:
		return "", fmt.Errorf("%w, and was not seen to renew the lease yet", standby)
	}
	return standby.Error(), nil
}

// Holds reads the Lease, and returns an error if this replica does not hold it, or if that is unknown.
func (e *Elector) Holds(ctx context.Context) error {
	if e.lock == nil {
		return nil
	}
	// This bypasses the lock, which records its reads for the election.
	got, err := e.lock.Client.Leases(e.lock.LeaseMeta.Namespace).Get(ctx, e.lock.LeaseMeta.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("lease %s: %w", e.lock.Describe(), err)
	}
	if holder := got.Spec.HolderIdentity; holder == nil || *holder != e.lock.Identity() {
		return fmt.Errorf("lease %s: %w: it names another", e.lock.Describe(), ErrDeposed)
	}
	return nil
}

// Status fills in the state of the election. It reports whether this replica leads, and why the Lease cannot be read or
// renewed. A standby reports nothing else.
func (e *Elector) Status(out *semaphorev1.GetStatusResponse) (leads bool, problem string) {
	out.Standby = e.Standby() != nil
	if e.lock != nil {
		is := e.lock.now()
		out.Leader, problem = replica(is.holder), is.problem
	}
	return !out.Standby, problem
}

// Run waits until this replica is the leader, then works. It returns when the work has ended: with its error, or with
// ErrDeposed if the lease was lost. When ctx ends, Run ends the work first and releases the lease afterwards, so that
// the next leader begins immediately and never too early.
//
// Run leaves deposed work behind that does not end while the lease still holds: it returns then, and the process must
// end.
func (e *Elector) Run(ctx context.Context, work Work) error {
	if e.lock == nil {
		e.working.Store(true)
		defer e.working.Store(false)
		return work(ctx, 0)
	}
	// The election must outlive ctx: the lease is renewed while the work ends, because otherwise another replica would
	// acquire it.
	electing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	started := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: e.lock, Name: e.lock.Describe(),
		LeaseDuration: e.duration(), RenewDeadline: e.renewDeadline(), RetryPeriod: e.retryPeriod(),
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(started) },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// This drops client-go's log messages: the lock logs each event itself, once.
		elector.Run(klog.NewContext(electing, klog.Logger{}))
	}()
	select {
	case <-ctx.Done():
		err = ctx.Err()
	case <-started:
		err = e.lead(ctx, work)
	}
	stop()
	<-ended
	if !errors.Is(err, errWorkStuck) {
		e.release(ctx)
	}
	return err
}

// lead runs the work until it ends, or until it must end.
func (e *Elector) lead(ctx context.Context, work Work) error {
	term := uint64(e.lock.now().transitions) + 1
	e.options.Log.Info("this replica leads", "lease", e.lock.Describe(), "term", term)
	ctx, end := context.WithCancel(ctx)
	defer end()
	e.term.Store(term)
	e.working.Store(true)
	defer e.working.Store(false)
	defer e.term.Store(0)
	result := make(chan error, 1)
	go func() { result <- work(ctx, term) }()

	due := time.NewTimer(0)
	defer due.Stop()
	for {
		select {
		case err := <-result:
			return err
		case <-e.lock.lost:
			return e.depose(end, result, taken(e.lock.now().holder))
		case <-due.C:
			is := e.lock.now()
			left := time.Until(is.renewedAt.Add(e.renewDeadline()))
			if left <= 0 {
				why := fmt.Sprintf("not renewed for %s", e.renewDeadline())
				if is.problem != "" { // there is none if this process or the machine was suspended
					why += ": " + is.problem
				}
				return e.depose(end, result, why)
			}
			due.Reset(left)
		}
	}
}

// taken describes who has the lease that this replica lost.
func taken(holder string) string {
	if holder == "" {
		return "somebody has emptied it"
	}
	return replica(holder) + " has it"
}

// depose cancels the work of a leader that lost its lease, and waits for the work to end while the lease may still
// hold.
func (e *Elector) depose(end context.CancelFunc, result <-chan error, why string) error {
	lost := fmt.Errorf("lease %s: %w: %s", e.lock.Describe(), ErrDeposed, why)
	e.options.Log.Error("this replica lost the lease and ends its work", "error", lost)
	end()
	// The wait ends half a retry period early, so that the process has this time to exit.
	last := time.NewTimer(time.Until(e.lock.now().renewedAt.Add(e.duration() - e.retryPeriod()/2)))
	defer last.Stop()
	select {
	case err := <-result:
		if err != nil && !errors.Is(err, context.Canceled) {
			e.options.Log.Error("the work ended with an error", "error", err)
		}
		return lost
	case <-last.C:
		return fmt.Errorf("%w; %w", lost, errWorkStuck)
	}
}

// release releases the lease if this replica holds it. If that fails, the lease expires.
func (e *Elector) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.releaseWithin)
	defer cancel()
	released, err := e.lock.release(ctx)
	switch {
	case err != nil:
		e.options.Log.Warn("cannot release the lease; the next leader waits until it expires", "lease", e.lock.Describe(),
			"error", err)
	case released:
		e.options.Log.Info("released the lease", "lease", e.lock.Describe())
	}
}
