package kubetest

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/test/testkit"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// TestStart checks what tests of other packages rely on: rights are enforced, tokens of ServiceAccounts are issued and
// reviewed, and a kubeconfig leads to the same apiserver.
func TestStart(t *testing.T) {
	tier.OnlyAll(t, "each test on an apiserver starts one so")
	cfg := Start(t)
	client := kubernetes.NewForConfigOrDie(cfg)

	t.Run("rights are checked", func(t *testing.T) {
		nobody := rest.CopyConfig(cfg)
		nobody.Impersonate.UserName = "system:serviceaccount:default:nobody"
		_, err := kubernetes.NewForConfigOrDie(nobody).CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("an account without rights lists pods: %v; want forbidden", err)
		}
	})
	t.Run("pod and token", func(t *testing.T) {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "agent"}}
		testkit.Value(client.CoreV1().ServiceAccounts("default").Create(t.Context(), account,
			metav1.CreateOptions{}))(t)
		pod := testkit.Value(client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "agent-1"},
			Spec: corev1.PodSpec{
				ServiceAccountName: "agent", NodeName: "n1",
				Containers: []corev1.Container{{Name: "agent", Image: "semaphore"}},
			},
		}, metav1.CreateOptions{}))(t)
		token := testkit.Value(client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "agent",
			&authenticationv1.TokenRequest{
				Spec: authenticationv1.TokenRequestSpec{
					Audiences: []string{"semaphore-broker.c1"},
					BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name,
						UID: pod.UID},
				},
			}, metav1.CreateOptions{}))(t)
		review := testkit.Value(client.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token.Status.Token, Audiences: []string{"semaphore-broker.c1"}},
		}, metav1.CreateOptions{}))(t)
		if !review.Status.Authenticated || review.Status.User.Username != "system:serviceaccount:default:agent" {
			t.Errorf("review of the token: %+v", review.Status)
		}
	})
	t.Run("kubeconfig", func(t *testing.T) {
		fromFile := testkit.Value(clientcmd.BuildConfigFromFlags("", Kubeconfig(t, cfg)))(t)
		if _, err := kubernetes.NewForConfigOrDie(fromFile).CoreV1().Namespaces().Get(t.Context(), "default",
			metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// TestProcessThatExits: a server that cannot start reports the reason.
func TestProcessThatExits(t *testing.T) {
	p := testkit.Value(run(t, nil, t.TempDir(), "sh", "/bin/sh", "-c", "echo the reason; exit 3"))(t)
	<-p.Exited
	if p.Err == nil || !strings.Contains(p.Tail(), "the reason") {
		t.Errorf("err %v, log %q", p.Err, p.Tail())
	}
}

func TestProcessEndsWithTest(t *testing.T) {
	var pid int
	t.Run("inner", func(t *testing.T) {
		dir := t.TempDir()
		testkit.Value(run(t, nil, dir, "sh", "/bin/sh", "-c", "echo $$ > pid; mv pid pid.done; exec sleep 600"))(t)
		pid = readPID(t, dir+"/pid.done")
	})
	if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
		t.Errorf("process %d after the end of its test: %v; want it gone", pid, err)
	}
}

func TestFindNamesWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(binDir, dir)
	if _, err := find(t.Context()); err == nil || !strings.Contains(err.Error(), "etcd") {
		t.Errorf("empty directory: %v; want an error that names etcd", err)
	}
	testkit.Must(t, os.WriteFile(dir+"/etcd", nil, 0o755))
	if _, err := find(t.Context()); err == nil || !strings.Contains(err.Error(), "kube-apiserver") {
		t.Errorf("no apiserver: %v; want an error that names it", err)
	}
}

func readPID(t *testing.T, path string) int {
	t.Helper()
	for range 6000 {
		if b, err := os.ReadFile(path); err == nil {
			pid := testkit.Value(strconv.Atoi(strings.TrimSpace(string(b))))(t)
			return pid
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s was never written", path)
	return 0
}
