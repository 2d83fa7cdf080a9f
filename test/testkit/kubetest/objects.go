package kubetest

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// Create creates an object, and ends the test if the apiserver refuses it. Get, Update and UpdateStatus do likewise.
func Create[T any](tb testing.TB, client interface {
	Create(context.Context, T, metav1.CreateOptions) (T, error)
}, object T) T {
	tb.Helper()
	return testkit.Value(client.Create(tb.Context(), object, metav1.CreateOptions{}))(tb)
}

// Temporary is Create for an object that is deleted when the test ends.
func Temporary[T metav1.Object](tb testing.TB, client interface {
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
}, object T) T {
	tb.Helper()
	created := Create(tb, client, object)
	tb.Cleanup(func() { client.Delete(context.Background(), created.GetName(), metav1.DeleteOptions{}) })
	return created
}

// Get returns the object of a name.
func Get[T any](tb testing.TB, client interface {
	Get(context.Context, string, metav1.GetOptions) (T, error)
}, name string) T {
	tb.Helper()
	return testkit.Value(client.Get(tb.Context(), name, metav1.GetOptions{}))(tb)
}

// Update updates an object.
func Update[T any](tb testing.TB, client interface {
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
}, object T) T {
	tb.Helper()
	return testkit.Value(client.Update(tb.Context(), object, metav1.UpdateOptions{}))(tb)
}

// UpdateStatus updates the status of an object.
func UpdateStatus[T any](tb testing.TB, client interface {
	UpdateStatus(context.Context, T, metav1.UpdateOptions) (T, error)
}, object T) T {
	tb.Helper()
	return testkit.Value(client.UpdateStatus(tb.Context(), object, metav1.UpdateOptions{}))(tb)
}

// Namespace creates a namespace unless it exists.
func Namespace(tb testing.TB, client kubernetes.Interface, name string) {
	tb.Helper()
	_, err := client.CoreV1().Namespaces().Create(tb.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		testkit.Must(tb, err)
	}
}

// AllowReading gives a user the right to read and watch resources of a group.
func AllowReading(tb testing.TB, client kubernetes.Interface, user, group string, resources ...string) {
	tb.Helper()
	Allow(tb, client, user, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources,
		Verbs: []string{"get", "list", "watch"}})
}

// Allow gives a user rights in the whole cluster.
func Allow(tb testing.TB, client kubernetes.Interface, user string, rules ...rbacv1.PolicyRule) {
	tb.Helper()
	role := Create(tb, client.RbacV1().ClusterRoles(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "allows-"}, Rules: rules,
	})
	Create(tb, client.RbacV1().ClusterRoleBindings(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
	})
}

// CreateObject is Create for an object without a Go type. GetObject and UpdateObject are like Get and Update.
func CreateObject(tb testing.TB, client dynamic.ResourceInterface,
	object *unstructured.Unstructured) *unstructured.Unstructured {
	tb.Helper()
	return testkit.Value(client.Create(tb.Context(), object, metav1.CreateOptions{}))(tb)
}

func GetObject(tb testing.TB, client dynamic.ResourceInterface, name string) *unstructured.Unstructured {
	tb.Helper()
	return testkit.Value(client.Get(tb.Context(), name, metav1.GetOptions{}))(tb)
}

func UpdateObject(tb testing.TB, client dynamic.ResourceInterface,
	object *unstructured.Unstructured) *unstructured.Unstructured {
	tb.Helper()
	return testkit.Value(client.Update(tb.Context(), object, metav1.UpdateOptions{}))(tb)
}
