package debug

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/internal/conns"
)

const (
	// maxCalls is how many questions a part answers at once, of all callers: an answer may take a copy of all that the
	// part has. Others wait up to maxWait, and at most maxWaiting of them do.
	maxCalls, maxWaiting = 4, 64
	maxWait              = 3 * time.Second
	// maxWatches is how many callers watch at once. Each may have the memory of a whole recorder's references.
	maxWatches = 32
	// handshakeTimeout and maxIdle are how long a connection may take to begin, and be without a question.
	handshakeTimeout, maxIdle = 10 * time.Second, 2 * time.Minute
)

// connections bounds those of the debug socket, and of the exporter's debug listener. All of one client are no more
// than its watches and questions need.
var connections = conns.Limits{All: 320, Unproven: 256, Each: 64}

// limits bounds the memory and CPU that callers take from the part's own work.
type limits struct {
	calls, waiting, watches chan struct{}
}

func newLimits() limits {
	return limits{make(chan struct{}, maxCalls), make(chan struct{}, maxWaiting), make(chan struct{}, maxWatches)}
}

// call returns when a question may be answered; done must be called after the answer. The part's own questions, which
// have no peer, do not wait.
func (l limits) call(ctx context.Context) (done func(), err error) {
	if _, remote := peer.FromContext(ctx); !remote {
		return func() {}, nil
	}
	done = func() { <-l.calls }
	select {
	case l.calls <- struct{}{}:
		return done, nil
	default:
	}
	select {
	case l.waiting <- struct{}{}:
		defer func() { <-l.waiting }()
	default:
		return nil, status.Errorf(codes.ResourceExhausted,
			"too many questions: this part answers %d at once, and %d wait: ask again later", maxCalls, maxWaiting)
	}
	timer := time.NewTimer(maxWait)
	defer timer.Stop()
	select {
	case l.calls <- struct{}{}:
		return done, nil
	case <-timer.C:
		return nil, status.Errorf(codes.ResourceExhausted,
			"too many questions: this part answers %d at once, and none of them ended within %s: ask again later", maxCalls,
			maxWait)
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// answer answers a question when it may be. lacks is why the part cannot, if call is nil.
func answer[Q, A any](ctx context.Context, s *server, call func(context.Context, Q) (A, error), q Q,
	lacks string) (none A, err error) {
	if call == nil {
		return none, status.Errorf(codes.Unimplemented, "this %s %s", s.recorder.part, lacks)
	}
	done, err := s.limits.call(ctx)
	if err != nil {
		return none, err
	}
	defer done()
	return call(ctx, q)
}

// watch reports whether one more caller may watch; done must be called at the end.
func (l limits) watch() (done func(), err error) {
	select {
	case l.watches <- struct{}{}:
		return func() { <-l.watches }, nil
	default:
		return nil, status.Errorf(codes.ResourceExhausted,
			"too many watch this part: the limit is %d: end one, or ask again later", maxWatches)
	}
}
