package peering

import (
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// renewEvery is how often the token of a stream is reviewed again, give or take a fifth: whoever came in one
	// herd is not reviewed in one.
	renewEvery = 5 * time.Minute
	// confirmAfter is when a token that was not authenticated is reviewed once more, before its stream ends. The
	// apiserver says so of a good one too while it cannot look something up.
	confirmAfter = 10 * time.Second
	// askAgainAfter is when a review that could not be made is tried again, give or take a fifth.
	askAgainAfter = time.Minute
	// maxLife is how long a stream lives, and at least half of that. The agent attaches again, which costs a review and nothing of
	// the state, and checks anew who the broker is.
	maxLife = 4 * time.Hour
)

// errOld is the end of a stream that has lived as long as one may.
var errOld = status.Error(codes.Aborted, "the stream is as old as one may be: attach again")

// renew reviews the newest token of a stream from time to time until the stream ends, and ends it when
// the token is good no more, or the stream is old. While the apiserver cannot be asked the stream stays: what was admitted goes on.
func (s *Server) renew(a *attachment) {
	wait := spread(renewEvery)
	doubted := false
	life := maxLife/2 + rand.N(maxLife/2)
	for {
		timer := time.NewTimer(wait)
		select {
		case <-a.ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		a.mu.Lock()
		token := a.token
		a.mu.Unlock()
		who, err := s.reviewed(a.ctx, s.renewals, token)
		if a.ctx.Err() != nil {
			return
		}
		switch code := status.Code(err); {
		case err != nil && code != codes.Unauthenticated && code != codes.PermissionDenied:
			// Nothing is known against the token.
			s.options.Metrics.renewed("unknown")
			a.setUnreviewed(status.Convert(err).Message())
			wait = spread(askAgainAfter)
			continue
		case code == codes.Unauthenticated && !doubted:
			doubted, wait = true, confirmAfter
			continue
		case err == nil && who != a.agent:
			// A stream is one pod's. Whoever holds another's token is not who was admitted.
			err = status.Errorf(codes.PermissionDenied, "the newest token is that of pod %s on node %s, not of %s on %s",
				who.Pod, who.Node, a.agent.Pod, a.agent.Node)
		}
		a.setUnreviewed("")
		if err != nil {
			s.options.Metrics.renewed("refused")
			a.stop(err)
			return
		}
		s.options.Metrics.renewed("good")
		// Only here: the apiserver has just answered, and lets the agent in again.
		if time.Since(a.since) >= life {
			a.stop(errOld)
			return
		}
		doubted, wait = false, spread(renewEvery)
	}
}

func (a *attachment) setUnreviewed(why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unreviewed = why
}

// spread is d, give or take a fifth.
func spread(d time.Duration) time.Duration {
	return d*4/5 + rand.N(d*2/5)
}
