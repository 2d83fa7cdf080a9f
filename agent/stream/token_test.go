package stream

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// openCall is a call that lasts until its context ends, and that records the sent messages.
type openCall struct {
	grpc.ClientStream
	ctx context.Context

	mu   sync.Mutex
	sent []*semaphorev1.AttachRequest
}

func (c *openCall) Attach(ctx context.Context,
	_ ...grpc.CallOption) (grpc.BidiStreamingClient[semaphorev1.AttachRequest, semaphorev1.AttachResponse], error) {
	c.ctx = ctx
	return c, nil
}

func (c *openCall) Send(m *semaphorev1.AttachRequest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = append(c.sent, m)
	return nil
}

func (c *openCall) Recv() (*semaphorev1.AttachResponse, error) {
	<-c.ctx.Done()
	return nil, c.ctx.Err()
}

func (c *openCall) tokens() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, m := range c.sent {
		if m.GetToken() != nil {
			out = append(out, m.GetToken().GetToken())
		}
	}
	return strings.Join(out, " ")
}

func TestARenewedTokenIsShown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		t.Helper()
		must(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write("first\n")
	synctest.Test(t, func(t *testing.T) {
		cfg := &config.Agent{}
		cfg.Broker.TokenFile = file
		s, call := New(cfg, quiet{}), &openCall{}
		if md, err := s.token.GetRequestMetadata(t.Context()); err != nil || md["authorization"] != "Bearer first" {
			t.Fatal(md, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.one(ctx, call) }()
		for _, step := range []struct{ file, sent string }{
			{"first\n", ""},
			{"second", "second"},
			{"second\n\n", "second"},
			{"", "second"}, // the kubelet writes the file again
			{strings.Repeat("x", maxToken+1), "second"},
			{"third", "second third"},
		} {
			write(step.file)
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := call.tokens(); got != step.sent {
				t.Errorf("with the file %.10q the broker was shown %q, want %q", step.file, got, step.sent)
			}
		}
		must(t, os.Remove(file))
		time.Sleep(time.Hour)
		select {
		case err := <-ended:
			t.Errorf("a token that cannot be read ended the stream: %v", err)
		default:
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if _, err := s.token.GetRequestMetadata(t.Context()); err == nil ||
			!strings.Contains(err.Error(), "broker.tokenFile") {
			t.Errorf("a call with no token: %v", err)
		}
	})
}
