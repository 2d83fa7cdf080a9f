package peering

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/conns"
)

// maxToken is the limit of a token in bytes: far above any projected token, and cheap to review.
const maxToken = 16 << 10

// Extra fields of a TokenReview: the pod and node that a token is bound to (KEP-4193; Kubernetes 1.30).
const (
	extraPodName  = "authentication.kubernetes.io/pod-name"
	extraPodUID   = "authentication.kubernetes.io/pod-uid"
	extraNodeName = "authentication.kubernetes.io/node-name"
	extraNodeUID  = "authentication.kubernetes.io/node-uid"
)

// Agent identifies an attached agent, as its token proves.
type Agent struct {
	Node    string
	NodeUID types.UID
	Pod     string
	PodUID  types.UID
}

type LiveNodes interface {
	UID(name string) (types.UID, bool)
	Synced() bool
}

const (
	// maxAdmissions is how many agents are admitted at a time, so that a herd of agents waits here and not in the
	// apiserver; maxRenewals bounds the repeated reviews of open streams, which can wait.
	maxAdmissions = 32
	maxRenewals   = 4
	// admissionTimeout is how long an agent may wait for admission; all of 5,000 agents together need less.
	admissionTimeout = 30 * time.Second
	reviewTimeout    = 10 * time.Second
	// A source may fail failureBurst times in a row to be admitted, and then once every failureInterval, as each attempt
	// costs the apiserver a review. maxSources bounds the sources that are remembered.
	failureBurst    = 20
	failureInterval = 5 * time.Second
	maxSources      = 4096
)

// Admission admits agents: each proves its node by a projected token of its ServiceAccount.
type Admission struct {
	kube      kubernetes.Interface
	agents    config.Agents
	nodes     LiveNodes
	podsKnown func() bool
	refuse    func(reason string)
	// review returns the agent that a token belongs to. It is Admission.reviewToken except in tests.
	review func(ctx context.Context, token string) (Agent, error)

	admissions, renewals *semaphore.Weighted
	failures             *conns.Failures
}

func newAdmission(o Options) *Admission {
	a := &Admission{
		kube: o.Kube, agents: o.Agents, nodes: o.Nodes, podsKnown: o.PodsKnown, refuse: o.Metrics.refused,
		admissions: semaphore.NewWeighted(maxAdmissions), renewals: semaphore.NewWeighted(maxRenewals),
		failures: conns.NewFailures(failureBurst, failureInterval, maxSources),
	}
	a.review = a.reviewToken
	return a
}

// admitted is the agent that was admitted to a call, and its token.
type admitted struct {
	agent Agent
	token string
}

type admittedKey struct{}

// Admitted returns the node whose agent Authenticate admitted to a call; "" for none.
func Admitted(ctx context.Context) string {
	who, ok := ctx.Value(admittedKey{}).(admitted)
	if !ok {
		return ""
	}
	return "node " + string(who.agent.NodeUID)
}

// Authenticate is an auth.AuthFunc: it admits a call, or returns why not. The error is Unauthenticated or
// PermissionDenied for a token that is not an agent's, ResourceExhausted after too many of these, and Unavailable if no
// token can be reviewed now.
func (a *Admission) Authenticate(ctx context.Context) (context.Context, error) {
	from := ""
	if p, ok := peer.FromContext(ctx); ok {
		from = conns.Source(p.Addr)
	}
	who, err := a.admit(ctx, from)
	if err != nil {
		a.refuse(status.Code(err).String())
		return nil, err
	}
	return context.WithValue(ctx, admittedKey{}, who), nil
}

func (a *Admission) admit(ctx context.Context, from string) (admitted, error) {
	wait, cancel := context.WithTimeout(ctx, admissionTimeout)
	defer cancel()
	end, err := a.failures.Acquire(wait, from)
	switch {
	case errors.Is(err, conns.ErrTooOften):
		return admitted{}, status.Errorf(codes.ResourceExhausted,
			"%s was refused too often: the broker reviews one attempt every %s", from, failureInterval)
	case err != nil:
		return admitted{}, status.Error(codes.Unavailable, "too many tokens are to be reviewed now")
	}
	token, err := auth.AuthFromMD(ctx, "bearer")
	if err != nil {
		end(true)
		return admitted{}, status.Error(codes.Unauthenticated,
			"no bearer token: an agent must send the token of its ServiceAccount")
	}
	agent, err := a.reviewQueued(wait, a.admissions, token)
	code := status.Code(err)
	end(code == codes.Unauthenticated || code == codes.PermissionDenied)
	return admitted{agent, token}, err
}

// reviewQueued reviews a token when queue permits. The error is Unavailable if the token cannot be judged now.
func (a *Admission) reviewQueued(ctx context.Context, queue *semaphore.Weighted, token string) (Agent, error) {
	if err := queue.Acquire(ctx, 1); err != nil {
		return Agent{}, status.Error(codes.Unavailable, "too many tokens wait for a review")
	}
	defer queue.Release(1)
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	return a.review(ctx, token)
}

// reviewToken asks the apiserver to review a token, and checks the node and pod. Only after the last check does the
// token prove the node.
func (a *Admission) reviewToken(ctx context.Context, token string) (Agent, error) {
	if len(token) > maxToken {
		return Agent{}, status.Error(codes.Unauthenticated, "the token is too long")
	}
	review, err := a.kube.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{a.agents.Audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		return Agent{}, status.Errorf(codes.Unavailable, "the token cannot be reviewed now: %v", err)
	}
	s := review.Status
	// A reviewer that does not support audiences answers for its own: the audience must be among those it checked.
	if !s.Authenticated || s.Error != "" || !slices.Contains(s.Audiences, a.agents.Audience) {
		return Agent{}, status.Errorf(codes.Unauthenticated, "the token is not valid for the audience %s, or has expired",
			a.agents.Audience)
	}
	if want := "system:serviceaccount:" + a.agents.Namespace + ":" + a.agents.ServiceAccount; s.User.Username != want {
		return Agent{}, status.Errorf(codes.PermissionDenied, "the token belongs to %s, not to %s", s.User.Username, want)
	}
	var bound [4]string
	for i, key := range []string{extraPodName, extraPodUID, extraNodeName, extraNodeUID} {
		values := s.User.Extra[key]
		if len(values) != 1 || values[0] == "" {
			return Agent{}, status.Errorf(codes.PermissionDenied,
				"the token lacks %s: it must be a projected token of a pod, of Kubernetes 1.30 or later", key)
		}
		bound[i] = values[0]
	}
	agent := Agent{Pod: bound[0], PodUID: types.UID(bound[1]), Node: bound[2], NodeUID: types.UID(bound[3])}
	// The review copies the node from the token, which can outlive a node that is deleted and created again.
	if !a.nodes.Synced() {
		return Agent{}, status.Error(codes.Unavailable, "the broker does not know the nodes yet")
	}
	if !a.podsKnown() {
		return Agent{}, status.Error(codes.Unavailable, "the broker does not know the agents' pods yet")
	}
	if uid, ok := a.nodes.UID(agent.Node); !ok || uid != agent.NodeUID {
		return Agent{}, status.Errorf(codes.PermissionDenied,
			"the token belongs to a pod on a node %s with UID %s, which does not exist", agent.Node, agent.NodeUID)
	}
	pod, err := a.kube.CoreV1().Pods(a.agents.Namespace).Get(ctx, agent.Pod, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return Agent{}, status.Errorf(codes.PermissionDenied, "the token's pod %s does not exist", agent.Pod)
	case err != nil:
		return Agent{}, status.Errorf(codes.Unavailable, "the token's pod cannot be read now: %v", err)
	case pod.UID != agent.PodUID || pod.Spec.NodeName != agent.Node ||
		pod.Spec.ServiceAccountName != a.agents.ServiceAccount:
		return Agent{}, status.Errorf(codes.PermissionDenied, "the pod %s is not the token's pod", agent.Pod)
	case pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return Agent{}, status.Errorf(codes.PermissionDenied, "the pod %s is terminating or has ended", agent.Pod)
	}
	return agent, nil
}
