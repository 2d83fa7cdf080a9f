package kubetest

import (
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// Agent creates a node with this address and the pod of an agent on it, and returns a token for an audience like the
// one that the kubelet projects. The namespace semaphore must exist.
func Agent(t testing.TB, admin kubernetes.Interface, node, address, audience string) (*corev1.Node, string) {
	t.Helper()
	ctx, core := t.Context(), admin.CoreV1()
	n := testkit.Value(core.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
		metav1.CreateOptions{}))(t)
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	n = testkit.Value(core.Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}))(t)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "semaphore-agent"}}
	if _, err := core.ServiceAccounts("semaphore").Create(ctx, account, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	pod := testkit.Value(core.Pods("semaphore").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: account.Name + "-" + node},
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: account.Name,
			Containers: []corev1.Container{{Name: "agent", Image: "semaphore"}}},
	}, metav1.CreateOptions{}))(t)
	token := testkit.Value(core.ServiceAccounts("semaphore").CreateToken(ctx, account.Name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			Audiences: []string{audience}, BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod",
				APIVersion: "v1", Name: pod.Name, UID: pod.UID},
		}}, metav1.CreateOptions{}))(t)
	return n, token.Status.Token
}
