package fleet

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/kube-semaphore/semaphore/ctl/show"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// errorText bounds how much of a command's standard error is kept for an error.
const errorText = 4 << 10

// Streams are the standard streams of a command in a pod; nil for none.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

func (c *Cluster) ofPod(pod *Pod, subresource string, query url.Values) (*url.URL, error) {
	base, _, err := rest.DefaultServerUrlFor(c.Config)
	if err != nil {
		return nil, fmt.Errorf("client for the apiserver: %w", err)
	}
	of := base.JoinPath("api/v1/namespaces", pod.Namespace, "pods", pod.Name, subresource)
	of.RawQuery = query.Encode()
	return of, nil
}

// Exec runs a command in a container, as kubectl exec does: over a WebSocket, or over SPDY if the apiserver or a proxy
// before it has no WebSockets. It fails if it cannot start, and for an exit code other than 0 with an error that has
// the method ExitStatus.
func (c *Cluster) Exec(ctx context.Context, pod *Pod, s Streams, command ...string) error {
	of, err := c.ofPod(pod, "exec", url.Values{"container": {pod.Container}, "command": command,
		"stdin": {fmt.Sprint(s.In != nil)}, "stdout": {fmt.Sprint(s.Out != nil)}, "stderr": {fmt.Sprint(s.Err != nil)}})
	if err != nil {
		return err
	}
	websocket, err := remotecommand.NewWebSocketExecutor(c.Config, "GET", of.String())
	if err != nil {
		return err
	}
	spdy, err := remotecommand.NewSPDYExecutor(c.Config, "POST", of)
	if err != nil {
		return err
	}
	both, err := remotecommand.NewFallbackExecutor(websocket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return err
	}
	// It also logs the error that it returns, and pings that fail after the end.
	return both.StreamWithContext(klog.NewContext(ctx, klog.New(nil)),
		remotecommand.StreamOptions{Stdin: s.In, Stdout: s.Out, Stderr: s.Err})
}

// RunIn runs semaphorectl in the pod of a part, as Run does.
func (c *Cluster) RunIn(ctx context.Context, part string, args ...string) ([]byte, error) {
	pods, err := c.Pods(ctx, part, "")
	if err != nil {
		return nil, err
	}
	return c.Run(ctx, pods[0], args...)
}

// Run runs semaphorectl in a pod, and returns its standard output. The error is why it did not run, or its own message
// if it could not do its work.
func (c *Cluster) Run(ctx context.Context, pod *Pod, args ...string) ([]byte, error) {
	var out bytes.Buffer
	said := &Tail{}
	err := c.Exec(ctx, pod, Streams{Out: &out, Err: said}, append([]string{stdioCommand[0]}, args...)...)
	var exit interface{ ExitStatus() int }
	if errors.As(err, &exit) {
		if did := []int{show.ExitWrong, show.ExitUnknown}; slices.Contains(did, exit.ExitStatus()) {
			return out.Bytes(), nil
		}
		err = cmp.Or(said.Err(), err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: exec in pod %s/%s: %w", c.Context, pod.Namespace, pod.Name, err)
	}
	return out.Bytes(), nil
}

// dial connects to the socket of the part in a pod, through a command in its container and that command's standard
// streams.
func (c *Cluster) dial(ctx context.Context, pod *Pod) (*Part, error) {
	command := readCommand
	if c.orders {
		command = stdioCommand
	}
	conn, err := c.connect(ctx, pod, command)
	if err != nil {
		return nil, err
	}
	where := c.Context + ": " + pod.Name
	// The one connection exists already: an error then is that of its creation, and not gRPC's later one.
	first := make(chan net.Conn, 1)
	first <- conn
	client, err := grpc.NewClient("passthrough:///"+stdioName, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case conn := <-first:
				return conn, nil
			default:
				return nil, errors.Join(errors.New("the connection through the apiserver has ended"), conn.err())
			}
		}))
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	return &Part{DebugServiceClient: semaphorev1.NewDebugServiceClient(client), Where: where, Context: c.Context,
		conn: client, carrier: conn}, nil
}

// stream is a connection over the standard streams of a command in a pod.
type stream struct {
	net.Conn
	cancel context.CancelFunc
	// ended is closed when the command has ended; why is the reason.
	ended chan struct{}
	why   error
}

// Close ends the command, too.
func (s *stream) Close() error {
	err := s.Conn.Close()
	s.cancel()
	<-s.ended
	return err
}

// err returns why the command ended; nil while it runs.
func (s *stream) err() error {
	select {
	case <-s.ended:
		return s.why
	default:
		return nil
	}
}

// connect starts the command in the pod that copies bytes to its part's socket, and returns when it does.
func (c *Cluster) connect(ctx context.Context, pod *Pod, command []string) (*stream, error) {
	// The connection outlives the timeout of its creation.
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	near, far := net.Pipe()
	s := &stream{Conn: near, cancel: cancel, ended: make(chan struct{})}
	said := &Tail{}
	go func() {
		defer close(s.ended)
		err := c.Exec(running, pod, Streams{In: far, Out: far, Err: said}, command...)
		if err != nil {
			s.why = cmp.Or(said.Err(), err)
		}
		far.Close()
	}()
	stop := context.AfterFunc(ctx, cancel)
	err := readGreeting(s.Conn)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err == nil {
		return s, nil
	}
	s.Close()
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("no connection in time: %w", ctx.Err())
	case s.why != nil:
		err = s.why
	}
	return nil, fmt.Errorf("%s: exec in pod %s/%s: %w", c.Context, pod.Namespace, pod.Name, err)
}

// Tail keeps the last bytes that are written to it.
type Tail struct {
	mu   sync.Mutex
	text []byte
}

// Write never fails.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if more := len(t.text) - errorText; more > 0 {
		t.text = bytes.Clone(t.text[more:])
	}
	return len(p), nil
}

func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return show.Printable(strings.Join(strings.Fields(string(t.text)), " "))
}

// Err is the line as an error; nil for none.
func (t *Tail) Err() error {
	if text := t.String(); text != "" {
		return errors.New(text)
	}
	return nil
}
