package apply

import (
	"fmt"
	"os"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestAddressesThatAPolicyRefuses: where the policy that ships lets the broker choose no cluster IP, a mirror that was
// deleted comes back with another one; where the policy knows which the apiserver may assign, with the same.
func TestAddressesThatAPolicyRefuses(t *testing.T) {
	cfg := kubetest.Start(t)
	ctx, admin := t.Context(), kubernetes.NewForConfigOrDie(cfg)
	kubetest.Namespace(t, admin, "mirrors")
	keys := judgeAddresses(t, admin)
	api := admin.CoreV1().Services("mirrors")
	client := serviceClient{native[*corev1.Service]{func(string) typed[*corev1.Service] { return api }},
		&lacking{refused: map[string]bool{}}}
	stands := testkit.Value(client.Create(ctx, service("echo", "c2", 80, false)))(t)
	testkit.Must(t, api.Delete(ctx, "echo", metav1.DeleteOptions{}))
	refused := func() error {
		_, err := api.Create(ctx, withAddresses(service("try", "c2", 80, false), stands),
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	s, err := client.Create(ctx, withAddresses(service("echo", "c2", 80, false), stands))
	if err != nil || s.Spec.ClusterIP == "" || s.Spec.ClusterIP == stands.Spec.ClusterIP {
		t.Fatalf("where none may be chosen, it comes back as %v: %v", s, err)
	}

	keys.Data = map[string]string{"staticServiceIPs": "10.96.0.0/24"}
	kubetest.Update(t, admin.CoreV1().ConfigMaps("mirrors"), keys)
	eventually(t, "the policy knows which may be chosen", func() (bool, string) {
		err := refused()
		return err == nil, fmt.Sprint(err)
	})
	stands = s
	testkit.Must(t, api.Delete(ctx, "echo", metav1.DeleteOptions{}))
	s, err = client.Create(ctx, withAddresses(service("echo", "c2", 80, false), stands))
	if err != nil || s.Spec.ClusterIP != stands.Spec.ClusterIP {
		t.Errorf("it comes back as %v, had %s: %v", s, stands.Spec.ClusterIP, err)
	}
}

// judgeAddresses creates the policy that ships, for all users, and waits until it is in force. It returns the ConfigMap
// of its keys, which is empty.
func judgeAddresses(t *testing.T, admin kubernetes.Interface) *corev1.ConfigMap {
	t.Helper()
	keys := kubetest.Create(t, admin.CoreV1().ConfigMaps("mirrors"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: "semaphore-subnets", Labels: map[string]string{"semaphore.uw.io/subnets": "true"}}})
	text := testkit.Value(os.ReadFile("../../deploy/broker/object-writes.yaml"))(t)
	for _, document := range strings.Split(string(text), "\n---\n") {
		if !strings.Contains(document, "\n  name: semaphore-service-addresses") {
			continue
		}
		if strings.Contains(document, "\nkind: ValidatingAdmissionPolicyBinding\n") {
			var b admissionv1.ValidatingAdmissionPolicyBinding
			testkit.Must(t, yaml.UnmarshalStrict([]byte(document), &b))
			b.Spec.ParamRef.Namespace = "mirrors"
			kubetest.Create(t, admin.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings(), &b)
		} else {
			var p admissionv1.ValidatingAdmissionPolicy
			testkit.Must(t, yaml.UnmarshalStrict([]byte(document), &p))
			p.Spec.MatchConditions = nil // the test is an administrator
			kubetest.Create(t, admin.AdmissionregistrationV1().ValidatingAdmissionPolicies(), &p)
		}
	}
	eventually(t, "the policy is in force", func() (bool, string) {
		s := service("try", "c2", 80, false)
		s.Spec.ClusterIP = "10.96.9.9"
		_, err := admin.CoreV1().Services("mirrors").Create(t.Context(), s,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "chooses no cluster IP"), fmt.Sprint(err)
	})
	return keys
}
