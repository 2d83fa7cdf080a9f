package verify

import (
	"context"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestAsk: a server reports who asked, payloads arrive completely, and each failure has a reason.
func TestAsk(t *testing.T) {
	listener := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, listener, "server") }()
	url := "http://" + listener.Addr().String() + "/"
	ask := func(q Question) Outcome {
		if q.Attempt == 0 {
			q.Attempt = 3 * time.Minute // how fast it is does not matter here
		}
		return Ask(t.Context(), q)
	}
	for _, bytes := range []int{0, 1 << 20, maxBytes} {
		o := ask(Question{URL: url, Bytes: bytes})
		if !o.Answered || o.Answer.Pod != "server" || o.Answer.Received != bytes ||
			!strings.HasPrefix(o.Answer.Client, "127.0.0.1:") {
			t.Errorf("%d bytes: %+v", bytes, o)
		}
		if runtime.GOOS == "linux" && o.PathMTU < 1280 {
			t.Errorf("the kernel's path MTU of loopback is %d", o.PathMTU)
		}
	}
	if o := ask(Question{URL: url, Bytes: maxBytes + 1}); o.Answered {
		t.Errorf("more than the server takes: %+v", o)
	}
	if o := ask(Question{URL: url, Refused: true, Within: 500 * time.Millisecond}); !o.Answered || o.Total < 0.5 {
		t.Errorf("a refusal that does not come: %+v", o)
	}

	// This server accepts connections and never answers.
	mute := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer mute.Close()
	for _, test := range []struct {
		url    string
		reason Reason
		// within is the timeout of an attempt, or the latest end of one that ends by itself.
		within time.Duration
	}{
		{"http://" + mute.Addr().String() + "/", Timeout, 200 * time.Millisecond},
		{"http://127.0.0.1:1/", Closed, 20 * time.Second},
		{"http://name.invalid:1/", NoName, 20 * time.Second},
	} {
		if o := ask(Question{URL: test.url, Attempt: test.within}); o.Answered || o.Reason != test.reason ||
			o.Error == "" {
			t.Errorf("%s: %+v, want %s", test.url, o, test.reason)
		}
		if o := ask(Question{URL: test.url, Attempt: test.within, Refused: true,
			Within: 2 * time.Minute}); o.Answered || o.Total > 60 {
			t.Errorf("%s: a refusal that comes at once: %+v", test.url, o)
		}
	}

	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	// The server starts again.
	began := time.Now()
	go func() {
		time.Sleep(500 * time.Millisecond)
		again, err := net.Listen("tcp", listener.Addr().String())
		if err != nil {
			t.Error(err)
			served <- err
			return
		}
		served <- Serve(t.Context(), again, "server")
	}()
	if o := ask(Question{URL: url, Within: time.Minute}); !o.Answered || time.Since(began) < 500*time.Millisecond {
		t.Errorf("it was away for half a second: %+v", o)
	}
}
