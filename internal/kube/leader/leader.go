// Package leader lets one of several replicas work: brokers and exporters choose it by a Lease
// (coordination.k8s.io/v1), with client-go's tools/leaderelection.
//
// What it adds to that library is what client-go leaves to its users: that work has ended before anybody
// else may begin. The library tells time from when an answer came; here it is told from when the question was asked, since a
// lease counts from somewhere between. A leader that is asked to stop gives the lease back only when its work has
// ended, and one that cannot renew it has a third of the lease's duration left for that.
//
// It is no fence. A process that is stopped in the middle of a write and goes on after its lease has passed to
// another makes that write; that it does no harm is up to the write, which carries the version that it changes.
//
// The package knows the apiserver and nothing of what the work is.
//
// It imports internal/kube for clients, internal/config for its section, and the message of a part's status.
package leader

import (
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
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// ErrDeposed is how work ends whose lease was lost. The process should end too: it may hold much that belongs to
// the work, and starts anew as a standby.
var ErrDeposed = errors.New("no longer the leader")

// errEndless is told besides of work that was deposed and goes on.
var errEndless = errors.New("the work does not end")

// Work is what only one replica does. It has ended when it returns, and it returns soon after ctx ends. The term
// counts leaders: a later one has a greater term. It is Lease.spec.leaseTransitions + 1, and 0 without
// election.
type Work func(ctx context.Context, term uint64) error

// Options are what an Elector needs.
type Options struct {
	Config config.LeaderElection
	// Rest is how to reach the apiserver that has the Lease; not needed where election is off.
	Rest     *rest.Config
	Registry prometheus.Registerer
	Log      *slog.Logger
}

// Elector is one replica's part in the choice.
type Elector struct {
	options Options
	// lock is nil where election is off.
	lock *lease
	// term of the work that is done now, and whether any is.
	term    atomic.Uint64
	working atomic.Bool
}

// New makes an elector. It asks nothing yet.
func New(options Options) (*Elector, error) {
	e := &Elector{options: options}
	if options.Config.Enabled {
		namespace, err := ownNamespace(options.Config.Namespace)
		if err != nil {
			return nil, err
		}
		identity, err := newIdentity()
		if err != nil {
			return nil, err
		}
		// Renewals wait for nothing: not in the queue of this part's other requests, and not for an answer that does
		// not come.
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
			Name: "semaphore_leader_term", Help: "Which leader this replica is, counted from 1 since the Lease was made; 0 for none, or without election.",
		}, func() float64 { return float64(e.term.Load()) }),
	)
	return e, nil
}

// Of makes the elector of a part ("broker", "exporter") from its configuration. The Lease is in the cluster that this
// process runs in, also where the part reads another one; outside of a cluster it is in the one that kube is of.
func Of(part string, election config.LeaderElection, kube config.Kube, registry prometheus.Registerer, log *slog.Logger) (*Elector, error) {
	options := Options{Config: election, Registry: registry, Log: log}
	if election.Enabled {
		var err error
		if options.Rest, err = clientConfig(kube, part); err != nil {
			return nil, err
		}
	}
	return New(options)
}

// newIdentity tells this process from all others, those before it in the same pod too: a lease that such a one held has to
// run out like any other.
func newIdentity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("name of this replica for leader election: %w", err)
	}
	return host + "_" + rand.Text(), nil
}

// replica is the host's name in an identity.
func replica(identity string) string {
	if i := strings.LastIndexByte(identity, '_'); i > 0 {
		return identity[:i]
	}
	return identity
}

func (e *Elector) duration() time.Duration { return e.options.Config.Duration.Duration }

// renewDeadline is how old the last renewal is when the work is ended. The third that is left is for ending.
func (e *Elector) renewDeadline() time.Duration { return e.duration() * 2 / 3 }

// retryPeriod is how often the lease is renewed, or looked at by a standby (up to 2.2 times as long: client-go
// spreads them).
func (e *Elector) retryPeriod() time.Duration { return e.duration() * 2 / 15 }

// Standby says why this replica does not work: the error names the leader. Nil when it does.
func (e *Elector) Standby() error {
	if e.working.Load() {
		return nil
	}
	if e.lock == nil {
		return errors.New("not started yet")
	}
	holder, problem := e.lock.seen()
	switch {
	case problem != "":
		return fmt.Errorf("standby: the leader is not known: %s", problem)
	case holder == "" || holder == e.lock.Identity():
		return errors.New("standby: nobody leads yet")
	}
	return fmt.Errorf("standby: %s leads", replica(holder))
}

// Ready says why this replica can neither work nor take over, no error when it can; note is what a standby has to say. A leader is
// ready when its work is. A standby is once it has seen the leader renew the lease: it reaches the apiserver, has the right to
// the Lease, and notices when renewals end. Whether the leader is well is no condition, or a standby could never replace one
// that is not.
func (e *Elector) Ready(working func() error) (note string, err error) {
	standby := e.Standby()
	if standby == nil {
		return "", working()
	}
	if e.lock == nil {
		return "", standby
	}
	switch followed, problem := e.lock.follows(); {
	case problem != "":
		return "", fmt.Errorf("standby: cannot take over: %s", problem)
	case !followed:
		return "", fmt.Errorf("%w, and was not seen to renew the lease yet", standby)
	}
	return standby.Error(), nil
}

// Holds asks the apiserver whether this replica has the lease: an error when it has not, or when that is not known.
func (e *Elector) Holds(ctx context.Context) error {
	if e.lock == nil {
		return nil
	}
	// Not by the lock, which notes what it gets and belongs to the election.
	got, err := e.lock.Client.Leases(e.lock.LeaseMeta.Namespace).Get(ctx, e.lock.LeaseMeta.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("lease %s: %w", e.lock.Describe(), err)
	}
	if holder := got.Spec.HolderIdentity; holder == nil || *holder != e.lock.Identity() {
		return fmt.Errorf("lease %s: %w: it names another", e.lock.Describe(), ErrDeposed)
	}
	return nil
}

// Status fills in what is to be told of the election, and says whether this replica leads. A standby has no more to
// tell.
func (e *Elector) Status(out *semaphorev1.GetStatusResponse) bool {
	out.Standby = e.Standby() != nil
	if e.lock != nil {
		var problem string
		out.Leader, problem = e.lock.seen()
		out.Leader = replica(out.Leader)
		if problem != "" {
			out.Problems = append(out.Problems, problem)
		}
	}
	return !out.Standby
}

// Run waits until this replica is the leader, then works. It returns when the work has ended: with its error, or with
// ErrDeposed when the lease was lost. When ctx ends, the work is ended first, and only then the lease is given back, so
// that the next leader begins at once and never too early.
//
// Deposed work that does not end while the lease still holds is left behind: Run returns then, and the process
// must end.
func (e *Elector) Run(ctx context.Context, work Work) error {
	if e.lock == nil {
		e.working.Store(true)
		defer e.working.Store(false)
		return work(ctx, 0)
	}
	// Not ctx itself: while the work is being ended the lease is renewed, or it would be taken.
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
		// The lock itself tells what happens, once and in this project's words.
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
	if !errors.Is(err, errEndless) {
		e.release(ctx)
	}
	return err
}

// lead works until the work ends or has to.
func (e *Elector) lead(ctx context.Context, work Work) error {
	term := e.lock.term()
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
			holder, _ := e.lock.seen()
			if holder == "" {
				return e.depose(end, result, "somebody has emptied it")
			}
			return e.depose(end, result, replica(holder)+" has it")
		case <-due.C:
			left := time.Until(e.lock.renewed().Add(e.renewDeadline()))
			if left <= 0 {
				why := fmt.Sprintf("not renewed for %s", e.renewDeadline())
				// None where this process itself did not run, or the machine.
				if _, problem := e.lock.seen(); problem != "" {
					why += ": " + problem
				}
				return e.depose(end, result, why)
			}
			due.Reset(left)
		}
	}
}

// depose ends the work of a leader whose lease is lost, and waits for its end while the lease may still hold.
func (e *Elector) depose(end context.CancelFunc, result <-chan error, why string) error {
	lost := fmt.Errorf("lease %s: %w: %s", e.lock.Describe(), ErrDeposed, why)
	e.options.Log.Error("ending the work", "error", lost)
	end()
	// Half a period early, for the process to end in.
	last := time.NewTimer(time.Until(e.lock.renewed().Add(e.duration() - e.retryPeriod()/2)))
	defer last.Stop()
	select {
	case err := <-result:
		if err != nil && !errors.Is(err, context.Canceled) {
			e.options.Log.Error("the work ended with an error", "error", err)
		}
		return lost
	case <-last.C:
		return fmt.Errorf("%w; %w", lost, errEndless)
	}
}

// release gives the lease back, if this replica has it. When that fails the lease runs out by itself.
func (e *Elector) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.retryPeriod())
	defer cancel()
	released, err := e.lock.release(ctx)
	switch {
	case err != nil:
		e.options.Log.Warn("could not give the lease back; the next leader waits for its end", "lease", e.lock.Describe(), "error", err)
	case released:
		e.options.Log.Info("gave the lease back", "lease", e.lock.Describe())
	}
}
