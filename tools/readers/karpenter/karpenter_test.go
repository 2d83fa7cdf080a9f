// Package karpenter has Karpenter's own scheduler simulate nodes with the taint that waits for the agent.
package karpenter

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/fake"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/injection"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/test"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// keys are those that a pool may give the taint.
var keys = []string{
	naming.TaintAgentNotReady,
	"startup-taint.cluster-autoscaler.kubernetes.io" + naming.PrefixedAgentNotReady,
	"example.org" + naming.PrefixedAgentNotReady,
}

// results are those of a simulation for one pod, with a pool and the nodes that there are.
func results(t *testing.T, pool *v1.NodePool, nodes ...*state.StateNode) scheduling.Results {
	t.Helper()
	ctx := options.ToContext(injection.WithControllerName(context.Background(), "provisioner"), test.Options())
	pod := test.Pod(test.PodOptions{ResourceRequirements: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}})
	provider, client, now := fake.NewCloudProvider(), clientfake.NewClientBuilder().Build(), &clock.RealClock{}
	provider.InstanceTypes = fake.InstanceTypes(10)
	types := map[string][]*cloudprovider.InstanceType{pool.Name: provider.InstanceTypes}
	cluster := state.NewCluster(now, client, provider)
	pools := []*v1.NodePool{pool}
	topology, err := scheduling.NewTopology(ctx, client, cluster, nodes, pools, types, []*corev1.Pod{pod})
	if err != nil {
		t.Fatal(err)
	}
	scheduler := scheduling.NewScheduler(ctx, client, pools, cluster, nodes, topology, types, nil,
		events.NewRecorder(&record.FakeRecorder{}), now, nil, nil)
	r, err := scheduler.Solve(ctx, []*corev1.Pod{pod})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func taint(key string) []corev1.Taint {
	return []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}}
}

// TestFromZero: a pool without nodes grows if the taint is a startup taint, and not if it is another one.
func TestFromZero(t *testing.T) {
	for _, key := range keys {
		for startup, want := range map[bool]int{true: 1, false: 0} {
			var spec v1.NodeClaimTemplateSpec
			if spec.Taints = taint(key); startup {
				spec.Taints, spec.StartupTaints = nil, spec.Taints
			}
			pool := test.NodePool(v1.NodePool{Spec: v1.NodePoolSpec{Template: v1.NodeClaimTemplate{Spec: spec}}})
			if r := results(t, pool); len(r.NewNodeClaims) != want || len(r.PodErrors) != 1-want {
				t.Errorf("%s as a startup taint %t: %d new nodes, not %d; errors %v", key, startup, len(r.NewNodeClaims), want,
					r.PodErrors)
			}
		}
	}
}

// TestNewNode: Karpenter plans the pod on a new node that has the startup taint still, and does not launch another one,
// as it does for any other taint. The node is initialized once the broker has removed the taint.
func TestNewNode(t *testing.T) {
	for _, key := range keys {
		claim, node := test.NodeClaimAndNode(v1.NodeClaim{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1.NodeRegisteredLabelKey: "true"}},
			Spec:       v1.NodeClaimSpec{StartupTaints: taint(key)},
			Status: v1.NodeClaimStatus{ProviderID: "fake:///n1", Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourcePods: resource.MustParse("10")}},
		})
		node.Spec.Taints = taint(key)
		s := state.NewNode()
		s.Node, s.NodeClaim = node, claim
		if r := results(t, test.NodePool(), s); len(r.NewNodeClaims) > 0 || len(r.ExistingNodes) != 1 ||
			len(r.ExistingNodes[0].Pods) != 1 {
			t.Errorf("%s: %d new nodes, and %d that exist", key, len(r.NewNodeClaims), len(r.ExistingNodes))
		}
		if _, removed := lifecycle.StartupTaintsRemoved(node, claim); removed {
			t.Errorf("%s: the node is initialized before the agent is ready", key)
		}
		other := s.DeepCopy()
		other.NodeClaim.Spec.StartupTaints = nil
		if r := results(t, test.NodePool(), other); len(r.NewNodeClaims) != 1 {
			t.Errorf("%s is no startup taint: %d new nodes", key, len(r.NewNodeClaims))
		}
		ours := func(o corev1.Taint) bool { return naming.IsAgentTaint(o.Key) }
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, ours)
		if of, removed := lifecycle.StartupTaintsRemoved(node, claim); !removed {
			t.Errorf("%s: the node waits for %v", key, of)
		}
	}
}
