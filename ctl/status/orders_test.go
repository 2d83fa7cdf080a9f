package status

import (
	"context"
	"fmt"
	"slices"
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

// rotator is a broker with two nodes, one of which has an agent; if node is set, it is the agent of that node.
type rotator struct {
	semaphorev1.UnimplementedControlServiceServer
	node string
}

func (r rotator) RotateKey(_ context.Context,
	req *semaphorev1.RotateKeyRequest) (*semaphorev1.RotateKeyResponse, error) {
	switch {
	case req.GetCluster() == "c9":
		return nil, grpcstatus.Error(codes.NotFound, `"c9" is no configured remote`)
	case r.node != "" && !req.GetForce():
		return nil, grpcstatus.Error(codes.FailedPrecondition, "not attached to the broker")
	case r.node != "":
		return &semaphorev1.RotateKeyResponse{Nodes: []*semaphorev1.NodeRotation{{Node: r.node, Accepted: true,
			Keys: []*semaphorev1.RotatedKey{{
				Cluster: "c2", Interface: "wireguard.c2", PublicKey: make([]byte, 32),
			}}}}}, nil
	}
	out := &semaphorev1.RotateKeyResponse{}
	for _, n := range []*semaphorev1.NodeRotation{{Node: "n1", Accepted: true},
		{Node: "n2", Problem: "no agent is attached"}} {
		if req.GetAll() || slices.Contains(req.GetNodes(), n.Node) {
			out.Nodes = append(out.Nodes, n)
		}
	}
	if req.Within != nil && req.Within.AsDuration() != time.Minute {
		return nil, grpcstatus.Error(codes.InvalidArgument, "within")
	}
	return out, nil
}

// TestVerbsOfOperators: the output of an operator's orders to a broker, and of orders that cannot be given.
func TestVerbsOfOperators(t *testing.T) {
	exporter := ctltest.Serve(t, debug.NewRecorder("exporter", "c1", ""), ctltest.Well)
	for name, of := range map[string]struct {
		broker semaphorev1.ControlServiceServer
		verbs  []string
	}{
		"release": {operator{}, []string{"release c2 --socket EXPORTER --socket BROKER", "release c2 --kind service",
			"release c2 --kind pods", "release c9", "release c2 --socket EXPORTER", "release",
			"release c2 --address 127.0.0.1:1 --part exporter"}},
		"drain": {drainer{}, []string{"drain cluster c2 --socket EXPORTER --socket BROKER", "drain cluster c3 --for 2h",
			"drain service shop/echo --dry-run", "drain service c2:shop/echo", "drain node c2/n1", "drain node c2/n2",
			"drain node c2/n2 --prefix 10.2.2.0/24,fd00:2::/64", "drain cluster c2 --socket EXPORTER",
			"drain cluster c2 --address 127.0.0.1:1 --part exporter", "drain cluster c2 --for -1h", "drain cluster",
			"drain service echo", "drain service :shop/echo", "drain node n1", "drain cluster c2 --prefix 10.2.2.0/24"}},
		"undrain": {drainer{}, []string{"undrain cluster c2", "undrain service c2:shop/echo", "undrain node c2/n1",
			"undrain cluster c9"}},
		"rotate-key": {rotator{}, []string{"rotate-key --node n1 --socket EXPORTER --socket BROKER",
			"rotate-key --all --within 1m", "rotate-key --node n1,n2", "rotate-key --all --remote c9",
			"rotate-key --all --socket EXPORTER", "rotate-key --all --node n1", "rotate-key --all --within -1s",
			"rotate-key --all --address 127.0.0.1:1 --part exporter"}},
		"rotate-key-agent": {rotator{node: "n1"}, []string{"rotate-key", "rotate-key --force"}},
	} {
		t.Run(name, func(t *testing.T) {
			broker := ctltest.ServeControl(t, "broker", of.broker)
			s := ctltest.NewSession(t, exporter, "EXPORTER", broker, "BROKER", "2026-01-02T14:00:00Z", "IN-2H")
			for _, verb := range of.verbs {
				if !strings.Contains(verb, "--socket") && !strings.Contains(verb, "--address") {
					verb += " --socket BROKER"
				}
				s.Call(strings.NewReplacer("EXPORTER", exporter, "BROKER", broker).Replace(verb))
			}
			s.Golden(name, nil)
		})
	}
}

// TestSomeNodesOfSomeClusters: the nodes of one cluster receive the order, and the broker of another refuses it.
func TestSomeNodesOfSomeClusters(t *testing.T) {
	refuses := ctltest.ServeControl(t, "broker", rotator{node: "n9"})
	orders := ctltest.ServeControl(t, "broker", rotator{})
	out, code, err := ctltest.Run(t, "rotate-key", "--all", "--socket", refuses, "--socket", orders)
	if code != 2 || !strings.Contains(out, "n1: order received") || !strings.Contains(err.Error(), "1 of 2 nodes") ||
		!strings.Contains(err.Error(), "not attached to the broker") {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
}
