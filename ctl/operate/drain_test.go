package operate

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
)

// drainer is the ControlService of a broker that knows node c2/n1 and service shop/echo.
type drainer struct {
	semaphorev1.UnimplementedControlServiceServer
}

func (drainer) Drain(_ context.Context, req *semaphorev1.DrainRequest) (*semaphorev1.DrainResponse, error) {
	d := &semaphorev1.DrainStatus{Target: req.Target, Prefixes: req.Prefixes, By: req.By, Endpoints: 3, Services: 1}
	if req.Lasts != nil {
		d.Until = timestamppb.New(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC).Add(req.Lasts.AsDuration()))
	}
	if req.Target.Node != "" && len(d.Prefixes) == 0 {
		if req.Target.Node != "n1" {
			return nil, grpcstatus.Error(codes.FailedPrecondition, "not known here: give them (--prefix)")
		}
		d.Prefixes = []string{"10.2.1.0/24"}
	}
	out := &semaphorev1.DrainResponse{Drain: d}
	if req.Target.Cluster == "c3" {
		out.Warnings = []string{"service shop/echo has nothing left"}
	}
	return out, nil
}

func (drainer) Undrain(_ context.Context, req *semaphorev1.UndrainRequest) (*semaphorev1.UndrainResponse, error) {
	if req.Target.Cluster == "c9" {
		return nil, grpcstatus.Error(codes.NotFound, "cluster c9 is not drained")
	}
	return &semaphorev1.UndrainResponse{}, nil
}

func TestDrain(t *testing.T) {
	exporter := ctltest.Serve(t, debug.NewRecorder("exporter", "c1", ""), ctltest.Well)
	broker := ctltest.ServeControl(t, "broker", drainer{})
	for _, c := range []struct {
		args string
		out  string
		err  string
	}{
		{"drain cluster c2 --socket " + exporter + " --socket " + broker,
			"cluster c2 is drained: 3 ready endpoints of 1 service not used here\n", ""},
		{"drain cluster c3 --for 2h --socket " + broker, "cluster c3 is drained until 2026-01-02T14:00:00Z: 3 ready " +
			"endpoints of 1 service not used here\nwarning: service shop/echo has nothing left\n", ""},
		{"drain service shop/echo --dry-run --socket " + broker,
			"service shop/echo would be drained: 3 ready endpoints of 1 service not used here\n", ""},
		{"drain service c2:shop/echo --socket " + broker,
			"service c2:shop/echo is drained: 3 ready endpoints of 1 service not used here\n", ""},
		{"drain node c2/n1 --socket " + broker,
			"node c2/n1 is drained: 3 ready endpoints of 1 service not used here\nits pods are in 10.2.1.0/24\n", ""},
		{"drain node c2/n2 --socket " + broker, "", "give them (--prefix)"},
		{"drain node c2/n2 --prefix 10.2.2.0/24,fd00:2::/64 --socket " + broker,
			"node c2/n2 is drained: 3 ready endpoints of 1 service not used here\nits pods are in 10.2.2.0/24, fd00:2::/64\n",
			""},
		{"undrain cluster c2 --socket " + broker, "cluster c2 is no longer drained\n", ""},
		{"undrain service c2:shop/echo --socket " + broker, "service c2:shop/echo is no longer drained\n", ""},
		{"undrain node c2/n1 --socket " + broker, "node c2/n1 is no longer drained\n", ""},
		{"undrain cluster c9 --socket " + broker, "", "cluster c9 is not drained"},
		{"drain cluster c2 --socket " + exporter, "", "none of the parts asked is a broker"},
		{"drain cluster c2 --address 127.0.0.1:1 --part exporter", "", "only a broker drains"},
		{"drain cluster c2 --for -1h --socket " + broker, "", "--for -1h0m0s: use 1s or more"},
		{"drain cluster --socket " + broker, "", "give one CLUSTER, not 0"},
		{"drain service echo --socket " + broker, "", "use NAMESPACE/NAME"},
		{"drain service :shop/echo --socket " + broker, "", "use NAMESPACE/NAME"},
		{"drain node n1 --socket " + broker, "", "use CLUSTER/NODE"},
		{"drain cluster c2 --prefix 10.2.2.0/24 --socket " + broker, "", "unknown flag"},
	} {
		out, code, err := ctltest.Run(t, strings.Fields(c.args)...)
		said, _, _ := strings.Cut(out, "to use it again: ")
		for _, next := range []string{"nothing was changed: ", "to see what still is: "} {
			said, _, _ = strings.Cut(said, next)
		}
		if said != c.out || (err == nil) != (c.err == "") || err != nil &&
			(code != 1 || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %q, exit code %d, %v", c.args, out, code, err)
		}
	}
}
