package operator

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kube-semaphore/semaphore/broker/peering"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// An order of an operator that makes no sense is refused before any agent receives it.
func TestRotateKeyRefused(t *testing.T) {
	remotes := []config.Remote{{Name: "c2"}, {Name: "c3"}}
	deaf := peering.New(peering.Options{Remotes: remotes, Metrics: peering.NewMetrics(prometheus.NewRegistry()),
		Recorder: debug.NewRecorder("broker", "c1", ""), Log: slog.New(slog.DiscardHandler)})
	deaf.SetUndelivered(map[string]string{"c2": "its broker is gone"})
	leads := &Broker{Peering: deaf, Config: func() *config.Broker { return &config.Broker{Remotes: remotes} }}
	for _, c := range []struct {
		name    string
		leading *Broker
		req     *semaphorev1.RotateKeyRequest
		code    codes.Code
	}{
		{"a standby", nil, &semaphorev1.RotateKeyRequest{All: true}, codes.FailedPrecondition},
		{"no encryption", &Broker{}, &semaphorev1.RotateKeyRequest{All: true}, codes.FailedPrecondition},
		{"nobody", leads, &semaphorev1.RotateKeyRequest{}, codes.InvalidArgument},
		{"all, and some", leads, &semaphorev1.RotateKeyRequest{All: true, Nodes: []string{"n1"}}, codes.InvalidArgument},
		{"of a remote that would not learn of it", leads, &semaphorev1.RotateKeyRequest{All: true, Cluster: "c2"},
			codes.FailedPrecondition},
		{"of all, one of which would not learn of it", leads, &semaphorev1.RotateKeyRequest{Nodes: []string{"n1"}},
			codes.FailedPrecondition},
		{"before now", leads, &semaphorev1.RotateKeyRequest{Nodes: []string{"n1"}, Within: durationpb.New(-time.Second)},
			codes.InvalidArgument},
		{"another remote", leads, &semaphorev1.RotateKeyRequest{Nodes: []string{"n1"}, Cluster: "c9"}, codes.NotFound},
	} {
		operator := New(slog.New(slog.DiscardHandler))
		operator.Lead(c.leading)
		if _, err := operator.RotateKey(t.Context(), c.req); status.Code(err) != c.code {
			t.Errorf("%s: %v; want %v", c.name, err, c.code)
		}
	}
}

// A node that needs no agent is not one that did not receive the order.
func TestNodesWithKeys(t *testing.T) {
	b := &Broker{Exempt: func(node string) string { return map[string]string{"windows": "it runs windows"}[node] }}
	var left []string
	for _, n := range b.withKeys([]*semaphorev1.NodeRotation{{Node: "n1", Accepted: true},
		{Node: "n2", Problem: "no agent is attached"}, {Node: "windows", Problem: "no agent is attached"}}) {
		left = append(left, n.GetNode())
	}
	if !slices.Equal(left, []string{"n1", "n2"}) {
		t.Errorf("%v", left)
	}
}

// The operator's word goes to a broker that works and has services.
func TestDrainRefused(t *testing.T) {
	for _, c := range []struct {
		name    string
		leading *Broker
	}{{"a standby", nil}, {"no services", &Broker{}}} {
		operator := New(slog.New(slog.DiscardHandler))
		operator.Lead(c.leading)
		target := &semaphorev1.DrainTarget{Cluster: "c2"}
		if _, err := operator.Drain(t.Context(),
			&semaphorev1.DrainRequest{Target: target}); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: %v", c.name, err)
		}
		if _, err := operator.Undrain(t.Context(),
			&semaphorev1.UndrainRequest{Target: target}); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
