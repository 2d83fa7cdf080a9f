package ctltest

import (
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kube-semaphore/semaphore/internal/debug"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

func BrokerWith(t *testing.T,
	sets func(*semaphorev1.ListSetsRequest) ([]*semaphorev1.PolicySet, error)) (socket string) {
	t.Helper()
	return ServeAnswers(t, debug.NewRecorder("broker", "c1", ""), Well, debug.Answers{Sets: sets})
}

func WebSet() *semaphorev1.PolicySet {
	return &semaphorev1.PolicySet{
		Cluster: "c2", Namespace: "shop", Name: "web", Connected: true, Complete: true,
		LastHeard: timestamppb.New(time.Now().Add(-4 * time.Second)),
		Objects: []*semaphorev1.SetObject{{Name: "c2-shop-web", Desired: 2, Present: 2},
			{Namespace: "shop", Name: "c2-shop-web", Desired: 2, Present: 2}},
		Pods: []*semaphorev1.SetPod{{Name: "web-1", Uid: "u1", Ips: []string{"10.2.0.5"}},
			{Name: "web-2", Uid: "u2", Ips: []string{"10.2.0.6", "fd02::6"}}},
	}
}

func ServeControl(t *testing.T, part string, c semaphorev1.ControlServiceServer) (socket string) {
	t.Helper()
	return ServeAnswers(t, debug.NewRecorder(part, "c1", ""), Well, debug.Answers{},
		func(r grpc.ServiceRegistrar) { semaphorev1.RegisterControlServiceServer(r, c) })
}
