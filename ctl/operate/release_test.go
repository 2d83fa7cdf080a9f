package operate

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// operator is the ControlService of a broker that retains 7 services and 2 nodes of c2.
type operator struct {
	semaphorev1.UnimplementedControlServiceServer
}

func (operator) ReleaseBrake(_ context.Context,
	req *semaphorev1.ReleaseBrakeRequest) (*semaphorev1.ReleaseBrakeResponse, error) {
	if req.Cluster != "c2" {
		return nil, grpcstatus.Errorf(codes.NotFound, "%q is no configured remote", req.Cluster)
	}
	out := &semaphorev1.ReleaseBrakeResponse{}
	for kind, n := range map[semaphorev1.Kind]uint64{semaphorev1.Kind_KIND_SERVICE: 7, semaphorev1.Kind_KIND_NODE: 2} {
		if len(req.Kinds) == 0 || fmt.Sprint(req.Kinds) == fmt.Sprint([]semaphorev1.Kind{kind}) {
			out.Released = append(out.Released, &semaphorev1.ReleasedKind{Kind: kind, Objects: n})
		}
	}
	return out, nil
}

func TestRelease(t *testing.T) {
	agent := ctltest.Serve(t, debug.NewRecorder("agent", "c1", "n1"), ctltest.Well)
	broker := filepath.Join(t.TempDir(), "broker.sock")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- debug.ServeSocket(ctx, broker, debug.NewServer(debug.NewRecorder("broker", "c1", ""), ctltest.Well,
			debug.Answers{}),
			func(r grpc.ServiceRegistrar) { semaphorev1.RegisterControlServiceServer(r, operator{}) })
	}()
	defer func() {
		cancel()
		must(t, <-done)
	}()
	ctltest.Listens(t, broker)
	const rest = ": the broker removes here what it made of them\nto see what is left: semaphorectl status\n"
	for _, c := range []struct {
		args []string
		out  string
		err  string
	}{
		{[]string{"c2", "--socket", agent, "--socket", broker}, "c2: released 2 nodes, 7 services" + rest, ""},
		{[]string{"c2", "--socket", broker, "--kind", "service"}, "c2: released 7 services" + rest, ""},
		{[]string{"c9", "--socket", broker}, "", `"c9" is no configured remote`},
		{[]string{"c2", "--socket", agent}, "", "none of the parts asked is a broker"},
		{[]string{"c2", "--socket", broker, "--kind", "pods"}, "", `--kind "pods": use node`},
		{[]string{"--socket", broker}, "", "give one CLUSTER, not 0"},
		{[]string{"c2", "--address", "127.0.0.1:1", "--part", "exporter"}, "", "only a broker has a brake"},
	} {
		out, code, err := ctltest.Run(t, append([]string{"release"}, c.args...)...)
		if out != c.out || (err == nil) != (c.err == "") || err != nil &&
			(code != 1 || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%v: %q, exit code %d, %v", c.args, out, code, err)
		}
	}
}
