package leader

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// lease is client-go's lock on a Lease, which also records the result of each request. Each write has the Lease's
// resourceVersion as a precondition, so that only one of two competitors succeeds.
type lease struct {
	*resourcelock.LeaseLock
	log *slog.Logger

	mu sync.Mutex
	seen
	// lost is closed when this replica sees the Lease with another holder after it held the Lease. The replica does not
	// acquire it again, because its work is ending.
	lost chan struct{}
}

// seen is what the requests have shown of the Lease.
type seen struct {
	// held is true once this replica has had the lease, and over when lost is closed. renewedAt is when the request of
	// its last renewal began.
	held, over bool
	renewedAt  time.Time
	// transitions is the largest leaseTransitions that was seen. While held, it is the value with which this replica
	// acquired the Lease.
	transitions int
	// holder is the replica that had the lease at the last check. problem is why the last request failed.
	holder, problem string
	// renewal is the last renewTime that was seen. followed is true once it was seen to change.
	renewal  time.Time
	followed bool
}

var errOver = errors.New("this replica has lost the lease")

func newLease(client coordinationv1.LeasesGetter, namespace, name, identity string, log *slog.Logger) *lease {
	return &lease{
		LeaseLock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name},
			Client:     client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
			Labels:     map[string]string{"app.kubernetes.io/name": "semaphore"},
		},
		log:  log,
		seen: seen{transitions: -1},
		lost: make(chan struct{}),
	}
}

func (l *lease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.LeaseLock.Get(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		if !apierrors.IsNotFound(err) { // then it is created
			l.fail(ctx, "cannot get it", err)
		}
		return nil, nil, err
	}
	if holder := record.HolderIdentity; holder != "" && holder != l.Identity() {
		l.well() // else the write that follows reports it
	}
	l.see(record.HolderIdentity)
	l.follow(record.RenewTime.Time)
	if l.held && !l.over && record.HolderIdentity != l.Identity() {
		l.over = true
		close(l.lost)
	}
	if !l.held {
		l.transitions = max(l.transitions, record.LeaderTransitions)
	}
	return record, raw, nil
}

func (l *lease) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	is := l.now()
	record.LeaderTransitions = is.transitions
	if !is.held {
		// The count continues after a deletion of the Lease, as far as this replica remembers it.
		record.LeaderTransitions++
	}
	return l.write(ctx, record, "cannot create it", l.LeaseLock.Create)
}

func (l *lease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if is := l.now(); is.held {
		record.LeaderTransitions = is.transitions
	} else {
		record.LeaderTransitions = max(is.transitions+1, record.LeaderTransitions)
	}
	return l.write(ctx, record, "cannot update it", l.LeaseLock.Update)
}

// write makes a write that acquires or renews the lease.
func (l *lease) write(ctx context.Context, record resourcelock.LeaderElectionRecord, what string,
	do func(context.Context, resourcelock.LeaderElectionRecord) error) error {
	if l.now().over {
		return errOver
	}
	// The apiserver writes the Lease at this time or later. A replica that waits for the Lease to expire therefore
	// waits at least until the duration has passed since now.
	began := time.Now()
	err := do(ctx, record)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.fail(ctx, what, err)
		return err
	}
	l.held, l.renewedAt, l.transitions = true, began, record.LeaderTransitions
	l.well()
	l.see(record.HolderIdentity)
	return nil
}

// release removes this replica as the holder of the Lease, so that the next leader need not wait, and reports whether
// it did.
func (l *lease) release(ctx context.Context) (bool, error) {
	for {
		record, _, err := l.LeaseLock.Get(ctx)
		if apierrors.IsNotFound(err) || err == nil && record.HolderIdentity != l.Identity() {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		now := metav1.Now()
		err = l.LeaseLock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaseDurationSeconds: 1, // 0 is not valid
			AcquireTime:          now, RenewTime: now,
			LeaderTransitions: record.LeaderTransitions,
		})
		if !apierrors.IsConflict(err) {
			return err == nil, err
		}
		// Another replica had it by then, or the last own renewal, which the end of the election cancelled, was late.
	}
}

// see records the holder of the lease. The caller holds mu.
func (l *lease) see(holder string) {
	if holder == l.holder {
		return
	}
	l.holder = holder
	switch holder {
	case l.Identity():
	case "":
		l.log.Info("standby: nobody leads", "lease", l.Describe())
	default:
		l.log.Info("standby", "lease", l.Describe(), "leader", replica(holder))
	}
}

// follow records a renewTime. The caller holds mu. A holder that renews is alive, and this replica sees the Lease
// change, which is all that it needs to take over.
func (l *lease) follow(renewal time.Time) {
	if !l.renewal.IsZero() && !renewal.Equal(l.renewal) {
		l.followed = true
	}
	l.renewal = renewal
}

// fail records why a request failed, and logs the first failure of a series. The caller holds mu.
func (l *lease) fail(ctx context.Context, what string, err error) {
	// A conflict means that another replica was faster, and a cancelled request that the election is ending. Neither is
	// a failure.
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || ctx.Err() == context.Canceled {
		return
	}
	first := l.problem == ""
	l.problem = "lease " + l.Describe() + ": " + what + ": " + err.Error()
	if first { // further failures only go to the status
		l.log.Warn("leader election has a problem; this replica retries", "problem", l.problem)
	}
}

// well records that requests succeed. The caller holds mu.
func (l *lease) well() {
	if l.problem != "" {
		l.log.Info("leader election works again", "lease", l.Describe())
	}
	l.problem = ""
}

func (l *lease) now() seen {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen
}
