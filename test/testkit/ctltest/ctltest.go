// Package ctltest is what tests of semaphorectl's rooms share: they call the whole program, which the test's main gives
// them, and it meets parts on sockets, and apiservers.
package ctltest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/debug"
	"github.com/kube-semaphore/semaphore/internal/program"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

var must = testkit.Must

// root makes semaphorectl. A room cannot name it, as ctl imports the rooms.
var root func() *cobra.Command

// Main runs the tests of a package, which call semaphorectl as command makes it.
func Main(m *testing.M, command func() *cobra.Command) {
	root = command
	loopback.Enter(kubetest.Prepare)
	goleak.VerifyTestMain(kubetest.Reusing(m))
}

func Command() *cobra.Command { return root() }

// Run calls semaphorectl, and returns its output and exit code.
func Run(t *testing.T, args ...string) (stdout string, code int, err error) {
	t.Helper()
	var out bytes.Buffer
	code, err = execute(t, &out, io.Discard, args)
	return out.String(), code, err
}

// execute calls semaphorectl, and returns its exit code.
func execute(t *testing.T, out, errs io.Writer, args []string) (code int, err error) {
	t.Helper()
	cmd := root()
	cmd.SetOut(out)
	cmd.SetErr(errs)
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	var exit program.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.Code, err
	case err != nil:
		return 1, err
	}
	return 0, nil
}

// Refuses calls semaphorectl with wrong arguments: each call ends with 1, and with an error that has the text.
func Refuses(t *testing.T, calls map[string]string) {
	t.Helper()
	for args, want := range calls {
		if _, code, err := Run(t, strings.Fields(args)...); code != 1 || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: exit code %d, %v; want 1 and %q", args, code, err, want)
		}
	}
}

func Serve(t *testing.T, rec *debug.Recorder, status func() *semaphorev1.GetStatusResponse) (socket string) {
	t.Helper()
	return ServeAnswers(t, rec, status, debug.Answers{})
}

// ServeAnswers starts a part on a socket, with what it answers besides its status, and with other services.
func ServeAnswers(t *testing.T, rec *debug.Recorder, status func() *semaphorev1.GetStatusResponse,
	answers debug.Answers, services ...func(grpc.ServiceRegistrar)) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "part.sock")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- debug.ServeSocket(ctx, socket, debug.NewServer(rec, status, answers), services...) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-done)
	})
	Listens(t, socket)
	return socket
}

// Listens waits until a server accepts connections on a socket, because the file exists slightly earlier.
func Listens(t *testing.T, socket string) {
	t.Helper()
	testkit.Eventually(t, 3*time.Minute, "a server listens", func() error {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}

func Well() *semaphorev1.GetStatusResponse {
	ago := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(time.Now().Add(-d)) }
	return &semaphorev1.GetStatusResponse{
		Ready: true,
		Links: []*semaphorev1.LinkStatus{{
			Cluster: "c2", Address: "192.0.2.7:8443", Connected: true, Since: ago(90 * time.Minute),
			LastHeard: ago(2 * time.Second),
			Kinds: []*semaphorev1.KindStatus{{Kind: semaphorev1.Kind_KIND_NODE, Objects: 2, Complete: true},
				{Kind: semaphorev1.Kind_KIND_SERVICE, Objects: 1, Complete: true}},
		}},
		Nodes: []*semaphorev1.NodeStatus{{Node: "n1", Attached: true, Since: ago(time.Hour), Devices: 1}},
		Devices: []*semaphorev1.DeviceStatus{{
			Cluster: "c2", Interface: "wireguard.c2", Backend: semaphorev1.Backend_BACKEND_KERNEL, ListenPort: 51820,
			Mtu:          1420,
			PeersDesired: 2, PeersPresent: 2,
			PeersWithHandshake: 1, LastHandshake: ago(time.Minute), Routes: []string{"10.2.0.0/16"},
		}},
	}
}
