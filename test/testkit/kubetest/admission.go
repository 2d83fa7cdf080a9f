package kubetest

import (
	"os"
	"path/filepath"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// StartAdmitting is Start for an apiserver with an AdmissionConfiguration of its own, in YAML.
func StartAdmitting(t testing.TB, configuration string) *rest.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "admission.yaml")
	if err := os.WriteFile(path, []byte(configuration), 0o600); err != nil {
		t.Fatalf("configuration of the admission plugins: %v", err)
	}
	cfg, _ := startWith(t, defaultRange, "--admission-control-config-file="+path)
	return cfg
}

// Refuse has the apiserver refuse the requests of a rule that do not fulfil an expression, until allow is called. The
// apiserver needs a moment for it.
func Refuse(t testing.TB, client kubernetes.Interface, rule admissionv1.RuleWithOperations, expression,
	message string) (allow func()) {
	t.Helper()
	return RefuseFor(t, client, metav1.StatusReasonInvalid, rule, expression, message)
}

// RefuseFor is Refuse for another reason than that of policies without one.
func RefuseFor(t testing.TB, client kubernetes.Interface, reason metav1.StatusReason,
	rule admissionv1.RuleWithOperations, expression, message string) (allow func()) {
	t.Helper()
	api := client.AdmissionregistrationV1()
	policy := Create(t, api.ValidatingAdmissionPolicies(), &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "refuses-"},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{
				ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: rule}}},
			Validations: []admissionv1.Validation{{Expression: expression, Message: message, Reason: &reason}},
		},
	})
	bindings := api.ValidatingAdmissionPolicyBindings()
	Create(t, bindings, &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: policy.Name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: policy.Name,
			ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	})
	return func() {
		t.Helper()
		testkit.Must(t, bindings.Delete(t.Context(), policy.Name, metav1.DeleteOptions{}))
	}
}
