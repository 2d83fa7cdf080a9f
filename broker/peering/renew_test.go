package peering

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// stream is the server's end of a call that goes nowhere. One that is stuck takes no message before it ends.
type stream struct {
	grpc.ServerStream
	ctx   context.Context
	in    chan *semaphorev1.AttachRequest
	stuck bool
}

func (s *stream) Context() context.Context { return s.ctx }

func (s *stream) Send(*semaphorev1.AttachResponse) error { return s.SendMsg(nil) }

func (s *stream) SendMsg(any) error {
	if s.stuck {
		<-s.ctx.Done()
	}
	return s.ctx.Err()
}

func (s *stream) Recv() (*semaphorev1.AttachRequest, error) {
	select {
	case m := <-s.in:
		return m, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

// reviewer answers reviews in place of an apiserver.
type reviewer struct {
	mu      sync.Mutex
	answer  func(token string) (Agent, error)
	tokens  []string
	at      []time.Time
	now     int
	mostNow int
	takes   time.Duration
}

func (r *reviewer) review(ctx context.Context, token string) (Agent, error) {
	r.mu.Lock()
	r.tokens, r.at = append(r.tokens, token), append(r.at, time.Now())
	r.now++
	r.mostNow = max(r.mostNow, r.now)
	answer := r.answer
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.now--
	}()
	select {
	case <-ctx.Done():
		return Agent{}, status.FromContextError(ctx.Err()).Err()
	case <-time.After(r.takes):
	}
	return answer(token)
}

func (r *reviewer) set(answer func(string) (Agent, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func (r *reviewer) last() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.tokens) == 0 {
		return ""
	}
	return r.tokens[len(r.tokens)-1]
}

// identity is whom a token of the tests is of: "NODE/POD …".
func identity(token string) (Agent, error) {
	node, rest, _ := strings.Cut(token, "/")
	pod, _, _ := strings.Cut(rest, " ")
	return Agent{Node: node, NodeUID: types.UID(node + "-uid"), Pod: pod, PodUID: types.UID(pod + "-uid")}, nil
}

// everyNode has every node that anybody asks for, as identity has them.
type everyNode struct{ *knownNodes }

func (everyNode) UID(name string) (types.UID, bool) { return types.UID(name + "-uid"), true }

func newReviewed() (*Server, *reviewer) {
	s := New(Options{
		Cluster: "c1", Remotes: []config.Remote{{Name: "c2"}}, Nodes: everyNode{&knownNodes{synced: true}},
		Reports: &knownNodes{}, State: NewState(),
		Metrics: NewMetrics(prometheus.NewRegistry()), Recorder: debug.NewRecorder("broker", "c1", ""),
		Log: slog.New(slog.DiscardHandler),
	})
	r := &reviewer{answer: identity, takes: time.Millisecond}
	s.review = r.review
	return s, r
}

// open is a stream of an agent that shows a token. ended receives the error that it ends with.
func (s *Server) open(t *testing.T, token string, stuck bool) (*stream, <-chan error) {
	agent, _ := identity(token)
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), admittedKey{}, admitted{agent, token}))
	st := &stream{ctx: ctx, in: make(chan *semaphorev1.AttachRequest), stuck: stuck}
	ended := make(chan error, 1)
	go func() {
		err := s.Attach(st)
		cancel() // as gRPC does when a handler returns
		ended <- err
	}()
	st.in <- hello(nil)
	return st, ended
}

func (s *stream) token(token string) {
	s.in <- &semaphorev1.AttachRequest{Message: &semaphorev1.AttachRequest_Token{Token: &semaphorev1.Token{Token: token}}}
}

// within says how a stream ended within d; nil and false when it did not.
func within(d time.Duration, ended <-chan error) (error, bool) {
	select {
	case err := <-ended:
		return err, true
	case <-time.After(d):
		return nil, false
	}
}

func ends(t *testing.T, ended <-chan error, d time.Duration, code codes.Code) {
	t.Helper()
	if err, over := within(d, ended); !over || status.Code(err) != code {
		t.Errorf("ended: %t, with %v; want %s within %s", over, err, code, d)
	}
}

func lasts(t *testing.T, ended <-chan error, d time.Duration) {
	t.Helper()
	if err, over := within(d, ended); over {
		t.Fatalf("ended within %s with %v", d, err)
	}
}

const longest = reviewInterval * 6 / 5

func TestTokensAreReviewedAgain(t *testing.T) {
	denied := func(string) (Agent, error) {
		return Agent{}, status.Error(codes.PermissionDenied, "the token's pod a is not there")
	}
	unauthenticated := func(string) (Agent, error) { return Agent{}, status.Error(codes.Unauthenticated, "expired") }
	run := func(name string, test func(*testing.T, *Server, *reviewer)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, r := newReviewed()
				test(t, s, r)
			})
		})
	}
	run("the newest one", func(t *testing.T, s *Server, r *reviewer) {
		st, ended := s.open(t, "n1/a first", false)
		if err, over := within(longest, ended); over || r.last() != "n1/a first" {
			t.Fatalf("ended with %v; reviewed %q", err, r.last())
		}
		st.token("n1/a second")
		if err, over := within(longest, ended); over || r.last() != "n1/a second" {
			t.Fatalf("ended with %v; reviewed %q", err, r.last())
		}
		if err, over := within(time.Hour, ended); over || len(r.tokens) < 10 || len(r.tokens) > 20 {
			t.Errorf("ended with %v; %d reviews in an hour", err, len(r.tokens))
		}
		if n := counted(t, s.options.Metrics.renewalsTotal.WithLabelValues("good")); int(n) != len(r.tokens) {
			t.Errorf("%v of %d reviews are counted", n, len(r.tokens))
		}
	})
	run("until the stream is old", func(t *testing.T, s *Server, _ *reviewer) {
		_, ended := s.open(t, "n1/a", false)
		lasts(t, ended, maxStreamAge/2-time.Second)
		ends(t, ended, maxStreamAge/2+longest+time.Minute, codes.Aborted)
	})
	run("of an old stream, while the apiserver does not answer", func(t *testing.T, s *Server, r *reviewer) {
		_, ended := s.open(t, "n1/a", false)
		r.set(func(string) (Agent, error) { return Agent{}, status.Error(codes.Unavailable, "no answer") })
		lasts(t, ended, 2*maxStreamAge)
		r.set(identity)
		ends(t, ended, 2*reviewRetry, codes.Aborted)
	})
	run("of a pod that was deleted", func(t *testing.T, s *Server, r *reviewer) {
		_, ended := s.open(t, "n1/a", false)
		r.set(denied)
		ends(t, ended, longest, codes.PermissionDenied)
	})
	run("of an agent that reads nothing", func(t *testing.T, s *Server, r *reviewer) {
		_, ended := s.open(t, "n1/a", true)
		r.set(denied)
		ends(t, ended, longest, codes.PermissionDenied)
	})
	run("that has expired", func(t *testing.T, s *Server, r *reviewer) {
		_, ended := s.open(t, "n1/a", false)
		r.set(unauthenticated)
		if err, over := within(longest+confirmDelay+time.Second, ended); !over || status.Code(err) != codes.Unauthenticated ||
			len(r.tokens) != 2 {
			t.Errorf("%v, %v after %d reviews", err, over, len(r.tokens))
		}
	})
	run("that the apiserver did not know for a moment", func(t *testing.T, s *Server, r *reviewer) {
		_, ended := s.open(t, "n1/a", false)
		r.set(func(token string) (Agent, error) {
			r.set(identity)
			return unauthenticated(token)
		})
		lasts(t, ended, time.Hour)
	})
	run("of another node", func(t *testing.T, s *Server, _ *reviewer) {
		st, ended := s.open(t, "n1/a", false)
		st.token("n2/b")
		if err, over := within(longest, ended); !over || status.Code(err) != codes.PermissionDenied ||
			!strings.Contains(err.Error(), "b on node n2") {
			t.Errorf("%v, %v", err, over)
		}
	})
	run("of another pod", func(t *testing.T, s *Server, _ *reviewer) {
		st, ended := s.open(t, "n1/a", false)
		st.token("n1/b")
		ends(t, ended, longest, codes.PermissionDenied)
	})
	// F20: what was admitted continues.
	run("while the apiserver cannot be asked", func(t *testing.T, s *Server, r *reviewer) {
		_, ended := s.open(t, "n1/a", false)
		r.set(func(string) (Agent, error) { return Agent{}, status.Error(codes.Unavailable, "connection refused") })
		lasts(t, ended, maxStreamAge/2-5*time.Minute)
		problems := fmt.Sprint(s.Status(nil, expected)[0].GetProblems())
		if !strings.Contains(problems, "connection refused") {
			t.Errorf("the status has %s", problems)
		}
		if _, err := s.admit(withToken(t.Context(), "n2/b"), ""); status.Code(err) != codes.Unavailable {
			t.Errorf("a newcomer: %v", err)
		}
		r.set(identity)
		if err, over := within(2*reviewRetry, ended); over || len(s.Status(nil, expected)[0].GetProblems()) > 0 {
			t.Errorf("ended with %v; status %v", err, s.Status(nil, expected))
		}
	})
	run("that hangs", func(t *testing.T, s *Server, r *reviewer) {
		_, ended := s.open(t, "n1/a", false)
		r.mu.Lock()
		r.takes = 24 * time.Hour
		r.mu.Unlock()
		r.set(identity)
		if err, over := within(time.Hour, ended); over || len(s.Status(nil, expected)[0].GetProblems()) == 0 {
			t.Errorf("ended with %v", err)
		}
		s.NodeDeleted("n1-uid")
		ends(t, ended, time.Second, codes.PermissionDenied)
	})
	run("of many that came at once", func(t *testing.T, s *Server, r *reviewer) {
		const agents = 1000
		r.takes = 10 * time.Millisecond
		start := time.Now()
		for i := range agents {
			s.open(t, fmt.Sprintf("n%d/a", i), false)
		}
		time.Sleep(longest + time.Minute)
		r.mu.Lock()
		defer r.mu.Unlock()
		bySecond := map[int]int{}
		for _, at := range r.at {
			bySecond[int(at.Sub(start).Seconds())]++
		}
		for second, n := range bySecond {
			if n > agents/40 {
				t.Errorf("%d reviews in second %d", n, second)
			}
		}
		if len(r.at) < agents || r.mostNow > maxRenewals {
			t.Errorf("%d reviews, %d at a time", len(r.at), r.mostNow)
		}
	})
}

// F34: a herd waits in the broker, and all of it gets in; also where all of it comes from one address.
func TestManyAreAdmittedAtOnce(t *testing.T) {
	for name, test := range map[string]struct {
		from func(i int) string
		most int
	}{
		"from many addresses": {func(i int) string { return fmt.Sprintf("10.0.%d.%d", i/250, i%250) }, maxAdmissions},
		"from one address":    {func(int) string { return "10.0.0.1" }, failureBurst},
	} {
		t.Run(name, func(t *testing.T) { testManyAtOnce(t, test.from, test.most) })
	}
}

func testManyAtOnce(t *testing.T, from func(i int) string, most int) {
	synctest.Test(t, func(t *testing.T) {
		s, r := newReviewed()
		r.takes = 20 * time.Millisecond // ten times what two requests take
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 5000 {
			wg.Go(func() {
				if _, err := s.admit(withToken(t.Context(), fmt.Sprintf("n%d/a", i)), from(i)); err != nil {
					t.Errorf("agent %d: %v", i, err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took > 10*time.Second || r.mostNow != most {
			t.Errorf("%s, %d at a time", took, r.mostNow)
		}
	})
}

func TestFailuresAreLimitedBySource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := newReviewed()
		r.set(func(token string) (Agent, error) {
			if token == "bad" {
				return Agent{}, status.Error(codes.Unauthenticated, "bad")
			}
			return identity(token)
		})
		admit := func(token, from string) codes.Code {
			_, err := s.admit(withToken(t.Context(), token), from)
			return status.Code(err)
		}
		for range failureBurst {
			if code := admit("bad", "10.0.0.1"); code != codes.Unauthenticated {
				t.Fatal(code)
			}
		}
		for range 100 {
			if code := admit("bad", "10.0.0.1"); code != codes.ResourceExhausted {
				t.Fatal(code)
			}
		}
		if len(r.tokens) != failureBurst {
			t.Errorf("%d reviews", len(r.tokens))
		}
		if code := admit("n1/a", "10.0.0.2"); code != codes.OK {
			t.Errorf("another source: %s", code)
		}
		time.Sleep(failureInterval)
		if a, b := admit("n1/a", "10.0.0.1"), admit("n1/a", "10.0.0.1"); a != codes.OK || b != codes.OK {
			t.Errorf("a good token after a while: %s, %s", a, b)
		}
		// A question that the apiserver cannot answer is nobody's fault.
		r.set(func(string) (Agent, error) { return Agent{}, status.Error(codes.Unavailable, "down") })
		for range 10 * failureBurst {
			if code := admit("n1/a", "10.0.0.3"); code != codes.Unavailable {
				t.Fatal(code)
			}
		}
		r.set(identity)
		for i := range 10 * maxSources { // from anywhere
			if end, err := s.failures.Acquire(t.Context(), fmt.Sprint(i)); err == nil {
				end(true)
			}
		}
		if n := s.failures.Sources(); n != maxSources {
			t.Errorf("%d sources are remembered", n)
		}
	})
}

// withToken is a call that shows a token.
func withToken(ctx context.Context, token string) context.Context {
	return metadata.NewIncomingContext(ctx, metadata.Pairs("authorization", "Bearer "+token))
}

func counted(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	testkit.Must(t, c.Write(&m))
	return m.GetCounter().GetValue()
}
