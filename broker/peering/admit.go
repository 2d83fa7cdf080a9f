package peering

import (
	"context"
	"slices"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/internal/config"
)

// maxToken is far above the length of any projected token, and far under what a review may cost.
const maxToken = 16 << 10

// What a TokenReview tells of the pod and node a token is bound to (KEP-4193; Kubernetes 1.30).
const (
	extraPodName  = "authentication.kubernetes.io/pod-name"
	extraPodUID   = "authentication.kubernetes.io/pod-uid"
	extraNodeName = "authentication.kubernetes.io/node-name"
	extraNodeUID  = "authentication.kubernetes.io/node-uid"
)

// Agent is who attached, as its token proves it.
type Agent struct {
	Node    string
	NodeUID types.UID
	Pod     string
	PodUID  types.UID
}

// LiveNodes are the nodes of the own cluster.
type LiveNodes interface {
	// UID is that of the live node of a name.
	UID(name string) (types.UID, bool)
	// Synced says whether the nodes are known yet.
	Synced() bool
}

// Admission admits agents: each proves the node it speaks for by a projected token of its ServiceAccount.
type Admission struct {
	kube   kubernetes.Interface
	agents config.Agents
	nodes  LiveNodes
	refuse func(reason string)
}

type agentKey struct{}

// agentOf is who was admitted to a call.
func agentOf(ctx context.Context) (Agent, bool) {
	a, ok := ctx.Value(agentKey{}).(Agent)
	return a, ok
}

// Authenticate is an auth.AuthFunc: it admits a call, or says why not. The order is that of ever closer
// questions; a token is proof of a node only after the last.
func (a *Admission) Authenticate(ctx context.Context) (context.Context, error) {
	agent, err := a.admit(ctx)
	if err != nil {
		a.refuse(status.Code(err).String())
		return nil, err
	}
	return context.WithValue(ctx, agentKey{}, agent), nil
}

func (a *Admission) admit(ctx context.Context) (Agent, error) {
	token, err := auth.AuthFromMD(ctx, "bearer")
	if err != nil {
		return Agent{}, status.Error(codes.Unauthenticated, "no bearer token: an agent shows the token of its ServiceAccount")
	}
	if len(token) > maxToken {
		return Agent{}, status.Error(codes.Unauthenticated, "the token is too long to be one")
	}
	review, err := a.kube.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{a.agents.Audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		return Agent{}, status.Errorf(codes.Unavailable, "the token cannot be reviewed now: %v", err)
	}
	s := review.Status
	// A reviewer that does not know audiences answers for its own: the audience must be among those it checked.
	if !s.Authenticated || s.Error != "" || !slices.Contains(s.Audiences, a.agents.Audience) {
		return Agent{}, status.Errorf(codes.Unauthenticated, "the token is none for the audience %s, or has expired", a.agents.Audience)
	}
	if want := "system:serviceaccount:" + a.agents.Namespace + ":" + a.agents.ServiceAccount; s.User.Username != want {
		return Agent{}, status.Errorf(codes.PermissionDenied, "the token is that of %s, not of %s", s.User.Username, want)
	}
	var bound [4]string
	for i, key := range []string{extraPodName, extraPodUID, extraNodeName, extraNodeUID} {
		values := s.User.Extra[key]
		if len(values) != 1 || values[0] == "" {
			return Agent{}, status.Errorf(codes.PermissionDenied, "the token does not say its %s: it must be a projected token of a pod, of Kubernetes 1.30 or later", key)
		}
		bound[i] = values[0]
	}
	agent := Agent{Pod: bound[0], PodUID: types.UID(bound[1]), Node: bound[2], NodeUID: types.UID(bound[3])}
	// The review only copies the node out of the token, which outlives a node that is deleted and made anew.
	if !a.nodes.Synced() {
		return Agent{}, status.Error(codes.Unavailable, "the broker does not know the nodes yet")
	}
	if uid, ok := a.nodes.UID(agent.Node); !ok || uid != agent.NodeUID {
		return Agent{}, status.Errorf(codes.PermissionDenied, "the token is that of a pod on a node %s with UID %s, which is not there", agent.Node, agent.NodeUID)
	}
	pod, err := a.kube.CoreV1().Pods(a.agents.Namespace).Get(ctx, agent.Pod, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return Agent{}, status.Errorf(codes.PermissionDenied, "the token's pod %s is not there", agent.Pod)
	case err != nil:
		return Agent{}, status.Errorf(codes.Unavailable, "the token's pod cannot be looked up now: %v", err)
	case pod.UID != agent.PodUID || pod.Spec.NodeName != agent.Node || pod.Spec.ServiceAccountName != a.agents.ServiceAccount:
		return Agent{}, status.Errorf(codes.PermissionDenied, "the pod %s is another one than the token's", agent.Pod)
	case pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return Agent{}, status.Errorf(codes.PermissionDenied, "the pod %s ends", agent.Pod)
	}
	return agent, nil
}
