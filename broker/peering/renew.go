package peering

import (
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// reviewInterval is how often the token of a stream is reviewed again, ± 20 %, so that agents that attached
	// together are not reviewed together.
	reviewInterval = 5 * time.Minute
	// confirmDelay is the wait before the second review of a token that was not authenticated; the stream ends only if
	// both fail. The apiserver also rejects a valid token while it cannot look something up.
	confirmDelay = 10 * time.Second
	// reviewRetry is the wait after a review that could not be made, ± 20 %.
	reviewRetry = time.Minute
	// maxStreamAge is the upper bound of a stream's random age limit; the lower bound is half of it. The agent
	// attaches again, which costs one review and no state, and verifies the broker's certificate again.
	maxStreamAge = 4 * time.Hour
)

var errTooOld = status.Error(codes.Aborted, "the stream reached its age limit: attach again")

// reviewUntilEnd reviews the newest token of a stream periodically until the stream ends. It ends the stream when the
// token is no longer valid, or at its age limit. While the apiserver cannot be asked, the stream remains.
func (s *Server) reviewUntilEnd(a *attachment) {
	wait := jitter(reviewInterval)
	doubted := false
	life := maxStreamAge/2 + rand.N(maxStreamAge/2)
	for {
		select {
		case <-a.ctx.Done():
			return
		case <-time.After(wait):
		}
		a.mu.Lock()
		token := a.token
		a.mu.Unlock()
		who, err := s.reviewQueued(a.ctx, s.renewals, token)
		if a.ctx.Err() != nil {
			return
		}
		switch code := status.Code(err); {
		case err != nil && code != codes.Unauthenticated && code != codes.PermissionDenied:
			// This says nothing about the token.
			s.options.Metrics.reviewed("unknown")
			a.setUnreviewed(status.Convert(err).Message())
			wait = jitter(reviewRetry)
			continue
		case code == codes.Unauthenticated && !doubted:
			doubted, wait = true, confirmDelay
			continue
		case err == nil && who != a.agent:
			// A stream belongs to one pod. Another pod's token does not prove the admitted agent.
			err = status.Errorf(codes.PermissionDenied, "the newest token belongs to pod %s on node %s, not to %s on %s",
				who.Pod, who.Node, a.agent.Pod, a.agent.Node)
		}
		a.setUnreviewed("")
		if err != nil {
			s.options.Metrics.reviewed("refused")
			a.stop(err)
			return
		}
		s.options.Metrics.reviewed("good")
		// Only here: the apiserver has just answered, so the agent can attach again.
		if time.Since(a.since) >= life {
			a.stop(errTooOld)
			return
		}
		doubted, wait = false, jitter(reviewInterval)
	}
}

func (a *attachment) setUnreviewed(why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unreviewed = why
}

// jitter returns d ± 20 %.
func jitter(d time.Duration) time.Duration {
	return d*4/5 + rand.N(d*2/5)
}
