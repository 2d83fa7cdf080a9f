package kubetest

import (
	"os"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// Grant creates the roles and bindings of manifests as they ship, and the namespace that they are for, and returns the
// configuration of a client that is the ServiceAccount of this name in it.
func Grant(t testing.TB, cfg *rest.Config, account string, manifests ...string) *rest.Config {
	t.Helper()
	admin, ctx := kubernetes.NewForConfigOrDie(cfg), t.Context()
	Namespace(t, admin, "semaphore")
	for _, file := range manifests {
		data := testkit.Value(os.ReadFile(file))(t)
		for _, doc := range strings.Split(string(data), "\n---\n") {
			object, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(doc), nil, nil)
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			switch object := object.(type) {
			case *rbacv1.ClusterRole:
				_, err = admin.RbacV1().ClusterRoles().Create(ctx, object, metav1.CreateOptions{})
			case *rbacv1.ClusterRoleBinding:
				_, err = admin.RbacV1().ClusterRoleBindings().Create(ctx, object, metav1.CreateOptions{})
			case *rbacv1.Role:
				_, err = admin.RbacV1().Roles(object.Namespace).Create(ctx, object, metav1.CreateOptions{})
			case *rbacv1.RoleBinding:
				_, err = admin.RbacV1().RoleBindings(object.Namespace).Create(ctx, object, metav1.CreateOptions{})
			default:
				t.Fatalf("%s has a %T, which gives no rights", file, object)
			}
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
		}
	}
	limited := rest.CopyConfig(cfg)
	limited.Impersonate.UserName = "system:serviceaccount:semaphore:" + account
	return limited
}
