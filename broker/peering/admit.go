package peering

import (
	"context"
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

const (
	// maxAdmissions is how many are admitted at a time, so that a herd of agents waits here and not in the apiserver;
	// maxRenewals is the same for reviews of tokens of streams that stand, which can wait.
	maxAdmissions = 32
	maxRenewals   = 4
	// admissionTimeout is how long an agent may wait to be admitted: 5,000 of them need less, all in all.
	admissionTimeout = 30 * time.Second
	// reviewTimeout is how long the apiserver may take for one.
	reviewTimeout = 10 * time.Second
)

// Admission admits agents: each proves the node it speaks for by a projected token of its ServiceAccount.
type Admission struct {
	kube   kubernetes.Interface
	agents config.Agents
	nodes  LiveNodes
	refuse func(reason string)
	// review says whose a token is. It is Admission.ask but in tests.
	review func(ctx context.Context, token string) (Agent, error)

	admissions, renewals *semaphore.Weighted
	failures             *failures
}

func newAdmission(o Options) *Admission {
	a := &Admission{
		kube: o.Kube, agents: o.Agents, nodes: o.Nodes, refuse: o.Metrics.refused,
		admissions: semaphore.NewWeighted(maxAdmissions), renewals: semaphore.NewWeighted(maxRenewals),
		failures: newFailures(time.Now),
	}
	a.review = a.ask
	return a
}

// admitted is who was admitted to a call, and by which token.
type admitted struct {
	agent Agent
	token string
}

type admittedKey struct{}

// Admitted names the node whose agent Authenticate has admitted to a call; "" for none.
func Admitted(ctx context.Context) string {
	who, ok := ctx.Value(admittedKey{}).(admitted)
	if !ok {
		return ""
	}
	return "node " + string(who.agent.NodeUID)
}

// Authenticate is an auth.AuthFunc: it admits a call, or says why not.
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
	end, err := a.failures.begin(wait, from)
	if err != nil {
		return admitted{}, err
	}
	token, err := auth.AuthFromMD(ctx, "bearer")
	if err != nil {
		end(true)
		return admitted{}, status.Error(codes.Unauthenticated, "no bearer token: an agent shows the token of its ServiceAccount")
	}
	agent, err := a.reviewed(wait, a.admissions, token)
	code := status.Code(err)
	end(code == codes.Unauthenticated || code == codes.PermissionDenied)
	return admitted{agent, token}, err
}

// reviewed is review, in a queue with others. Its error is Unavailable where nothing can be said of the token.
func (a *Admission) reviewed(ctx context.Context, queue *semaphore.Weighted, token string) (Agent, error) {
	if err := queue.Acquire(ctx, 1); err != nil {
		return Agent{}, status.Error(codes.Unavailable, "too many tokens are to be reviewed now")
	}
	defer queue.Release(1)
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	return a.review(ctx, token)
}

// ask has the apiserver review a token. The order is that of ever closer questions; a token is proof of a node
// only after the last.
func (a *Admission) ask(ctx context.Context, token string) (Agent, error) {
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
