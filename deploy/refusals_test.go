package deploy_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// refusals records the messages of all policies that refuse a request. The apiserver's error has the message of only
// one policy, and which one changes with each write of a policy. So each policy has a second binding that warns
// (server.warn): a response has the warnings of all policies, whether it is refused or not.
type refusals struct {
	mu   sync.Mutex
	said []string
}

func (r *refusals) HandleWarningHeader(_ int, _ string, text string) {
	if _, said, ok := strings.Cut(text, "-warns': "); ok {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.said = append(r.said, said)
	}
}

// take returns the messages since the last take, each once.
func (r *refusals) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	said := r.said
	r.said = nil
	slices.Sort(said)
	return slices.Compact(said)
}

// Options of requests that change nothing. The apiserver admits or refuses them like others.
var (
	dry       = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	dryUpdate = metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}}
	dryDelete = metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
)

// says are parts of the policies' messages about an attempt, one for each message.
type says []string

// attempt is a request of a confined user.
type attempt struct {
	name string
	do   func() error
	// refused has all reasons for the refusal. If it is empty, the request must pass.
	refused says
}

// tries returns the request to create an object, which changes nothing.
func tries[T any](t *testing.T, client interface {
	Create(context.Context, T, metav1.CreateOptions) (T, error)
}, object T) func() error {
	return func() error { _, err := client.Create(t.Context(), object, dry); return err }
}

// checkAll makes attempts, and logs how long those with a large object take.
func (s *server) checkAll(t *testing.T, attempts []attempt) {
	t.Helper()
	for _, a := range attempts {
		t.Run(a.name, func(t *testing.T) {
			started := time.Now()
			a.check(t, s)
			if strings.HasSuffix(a.name, "as large as can be") {
				t.Logf("took %v", time.Since(started))
			}
		})
	}
}

// check makes the attempt once. It must pass, or be refused for exactly these reasons.
func (a attempt) check(t *testing.T, s *server) {
	t.Helper()
	s.refused.take()
	err := a.do()
	said := s.refused.take()
	switch {
	case len(a.refused) == 0 && err != nil:
		t.Errorf("refused: %v", err)
	case len(a.refused) > 0 && err == nil:
		t.Error("passed")
	case err != nil && !strings.Contains(err.Error(), "ValidatingAdmissionPolicy"):
		t.Errorf("refused by no policy: %v", err)
	}
	for _, want := range a.refused {
		if !slices.ContainsFunc(said, func(message string) bool { return strings.Contains(message, want) }) {
			t.Errorf("no policy says %q", want)
		}
	}
	for _, message := range said {
		if !slices.ContainsFunc(a.refused, func(want string) bool { return strings.Contains(message, want) }) {
			t.Errorf("a policy says %q", message)
		}
	}
	if len(said) != len(a.refused) {
		t.Errorf("policies say %q, want %q", said, a.refused)
	}
}

// warn adds a warning binding for each policy of an overlay until the test ends.
func (s *server) warn(t *testing.T, objects []runtime.Object) {
	t.Helper()
	client := s.client("").AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	for _, o := range objects {
		shipped, ok := o.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding)
		if !ok {
			continue
		}
		if !slices.Equal(shipped.Spec.ValidationActions,
			[]admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}) {
			t.Errorf("binding %s has the actions %s", shipped.Name, shipped.Spec.ValidationActions)
		}
		warns := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: shipped.Name + "-warns"}, Spec: *shipped.Spec.DeepCopy()}
		warns.Spec.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Warn}
		kubetest.Temporary(t, client, warns)
	}
}

// settled waits until the apiserver has applied all earlier writes of RBAC, policies and their parameters. It writes
// one more object of each type and waits for its effect, because an apiserver sees the objects of a type in order.
func (s *server) settled(t *testing.T) {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	must(t, kubetest.Authorizes(ctx, s.client("")))
	// The apiserver lists the bindings and then gets the policy of each. In the first round it may find the last policy
	// although it has not found an earlier one. In the second round it has all policies from before the first.
	for range 2 {
		s.policiesSettled(t)
	}
	t.Logf("rights and policies are in force after %s", time.Since(began).Round(time.Millisecond))
}

// policiesSettled creates a policy with a parameter, like those of slices, and waits until it takes effect.
func (s *server) policiesSettled(t *testing.T) {
	t.Helper()
	const ns = "kube-system"
	admission, configMaps := s.client("").AdmissionregistrationV1(), s.client("").CoreV1().ConfigMaps(ns)
	param := kubetest.Temporary(t, configMaps, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "settled-"}})
	meta := metav1.ObjectMeta{Name: param.Name}
	kubetest.Temporary(t, admission.ValidatingAdmissionPolicies(), &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: meta, Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			ParamKind: &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"},
			MatchConstraints: &admissionregistrationv1.MatchResources{
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
					RuleWithOperations: admissionregistrationv1.RuleWithOperations{
						Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
						Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
							Resources: []string{"configmaps"}},
					}}}},
			MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "settled",
				Expression: "object.metadata.name == '" + param.Name + "-try'"}},
			Validations: []admissionregistrationv1.Validation{{Expression: "false", Message: "settled"}},
		}})
	kubetest.Temporary(t, admission.ValidatingAdmissionPolicyBindings(),
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: meta, Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: param.Name,
				ParamRef: &admissionregistrationv1.ParamRef{Name: param.Name, Namespace: ns,
					ParameterNotFoundAction: ptr.To(admissionregistrationv1.AllowAction)},
				ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			}})
	try := tries(t, configMaps, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: param.Name + "-try"}})
	eventually(t, "policies are in force", func() error {
		if err := try(); err == nil || !apierrors.IsInvalid(err) || !strings.HasSuffix(err.Error(), "settled") {
			return fmt.Errorf("the last one is not: %v", err)
		}
		return nil
	})
}
