package debug

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestFlood: 200 callers ask and watch at once, on a connection each. No more than maxCalls are answered at once and no
// more than maxWatches watch, the others are refused with the limit, the part's own question waits for none of them,
// and after the flood the next question is answered.
func TestFlood(t *testing.T) {
	r := NewRecorder("broker", "c1", "")
	record(r, 0, remembered)
	var now, most, answered atomic.Int64
	held := make(chan struct{})
	srv := NewServer(r, func() *semaphorev1.GetStatusResponse { return &semaphorev1.GetStatusResponse{} }, Answers{
		Locate: func(context.Context, *semaphorev1.LocateRequest) (*semaphorev1.LocateResponse, error) {
			n := now.Add(1)
			defer now.Add(-1)
			for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
			}
			<-held
			answered.Add(1)
			return &semaphorev1.LocateResponse{}, nil
		},
	})
	path := filepath.Join(t.TempDir(), "s")
	one, _ := serve(t, path, srv)
	testkit.Value(one.GetStatus(t.Context(), &semaphorev1.GetStatusRequest{}, grpc.WaitForReady(true)))(t)

	const callers = 200
	ctx, cancel := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	var watching, watchesRefused, refused atomic.Int64
	for range callers {
		conn := testkit.Value(grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
		t.Cleanup(func() { conn.Close() })
		client := semaphorev1.NewDebugServiceClient(conn)
		flood.Go(func() {
			_, err := client.Locate(t.Context(), &semaphorev1.LocateRequest{}, grpc.WaitForReady(true))
			if status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), fmt.Sprint("answers ", maxCalls)) {
				refused.Add(1)
			} else if err != nil {
				t.Errorf("Locate: %v", err)
			}
		})
		flood.Go(func() {
			stream, err := client.Watch(ctx, &semaphorev1.WatchRequest{Recent: true}, grpc.WaitForReady(true))
			if err == nil {
				_, err = stream.Recv()
			}
			switch {
			case err == nil:
				watching.Add(1)
				<-ctx.Done()
			case status.Code(err) == codes.ResourceExhausted &&
				strings.Contains(err.Error(), fmt.Sprint("limit is ", maxWatches)):
				watchesRefused.Add(1)
			default:
				t.Errorf("Watch: %v", err)
			}
		})
	}
	// The callers that wait are refused, too, once they have waited for long enough.
	testkit.Eventually(t, time.Minute, "all but the first callers are refused", func() error {
		if got := refused.Load(); got != callers-maxCalls {
			return fmt.Errorf("%d of %d are refused", got, callers)
		}
		if w, r := watching.Load(), watchesRefused.Load(); w != maxWatches || w+r != callers {
			return fmt.Errorf("%d watch, and %d may not", w, r)
		}
		return nil
	})
	if n := most.Load(); n != maxCalls {
		t.Errorf("%d questions were answered at once; want %d", n, maxCalls)
	}
	began := time.Now()
	if _, err := srv.GetStatus(t.Context(), &semaphorev1.GetStatusRequest{}); err != nil || time.Since(began) > maxWait {
		t.Errorf("the part's own question: %v after %s", err, time.Since(began))
	}
	var memory runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&memory)
	t.Logf("%d connections, %d goroutines, %d KiB of heap", callers, runtime.NumGoroutine(), memory.HeapAlloc>>10)
	close(held)
	cancel()
	flood.Wait()
	testkit.Value(one.Locate(t.Context(), &semaphorev1.LocateRequest{}))(t)
	testkit.Eventually(t, time.Minute, "there is room for a watch again", func() error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := one.Watch(ctx, &semaphorev1.WatchRequest{Recent: true})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	})
}

// TestConnections: of 300 callers that stay connected, each is answered, and the oldest 44 connections are closed.
func TestConnections(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	serve(t, path, NewServer(NewRecorder("broker", "c1", ""), func() *semaphorev1.GetStatusResponse {
		return &semaphorev1.GetStatusResponse{}
	}, Answers{}))
	all := make([]*grpc.ClientConn, 300)
	for i := range all {
		conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
		testkit.Must(t, err)
		t.Cleanup(func() { conn.Close() })
		all[i] = conn
		_, err = semaphorev1.NewDebugServiceClient(conn).GetStatus(t.Context(), &semaphorev1.GetStatusRequest{},
			grpc.WaitForReady(true))
		testkit.Must(t, err)
	}
	testkit.Eventually(t, time.Minute, "256 connections are open", func() error {
		for i, conn := range all {
			if open := conn.GetState() == connectivity.Ready; open != (i >= 44) {
				return fmt.Errorf("connection %d is %s", i, conn.GetState())
			}
		}
		return nil
	})
}

// TestSilentConnection: a connection on which nobody begins to speak is closed after 10 s.
func TestSilentConnection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	client, _ := serve(t, path, NewServer(NewRecorder("broker", "c1", ""), func() *semaphorev1.GetStatusResponse {
		return &semaphorev1.GetStatusResponse{}
	}, Answers{}))
	testkit.Value(client.GetStatus(t.Context(), &semaphorev1.GetStatusRequest{}, grpc.WaitForReady(true)))(t)
	began := time.Now()
	conn := testkit.Value(net.Dial("unix", path))(t)
	defer conn.Close()
	testkit.Must(t, conn.SetReadDeadline(began.Add(time.Minute)))
	// The server's own preface comes at once.
	_, err := io.Copy(io.Discard, conn)
	if took := time.Since(began); err != nil || took < 9*time.Second || took > 20*time.Second {
		t.Errorf("the connection ended after %s: %v", took, err)
	}
}
