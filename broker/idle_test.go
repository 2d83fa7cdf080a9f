package broker

import (
	"fmt"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/config"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
	"github.com/kube-semaphore/semaphore/test/testkit/players"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// TestWaitingServicesCostNoCPU makes 5,000 Services wait, because of objects that may not be listed, of a webhook that
// is down, and of a policy that refuses each for itself. Each of the three costs at most one percent of a core.
func TestWaitingServicesCostNoCPU(t *testing.T) {
	tier.OnlyAll(t, "internal/kube/reconcile counts the attempts of what waits, in virtual time")
	const services = 5000
	w := newWorld(t)
	ctx := t.Context()
	w.cfg.Features = config.Features{config.Services}
	for i := range w.cfg.Remotes {
		w.cfg.Remotes[i].Limits.Services, w.cfg.Remotes[i].Limits.ClusterIPs = services, services
	}
	var all []*semaphorev1.Object
	for i := range services {
		name := fmt.Sprint("s", i)
		all = append(all, players.Service("shop", name, 80),
			players.Slice("shop", name+"-x", name, fmt.Sprintf("10.2.%d.%d", i/250+1, i%250+1)))
	}
	send := func(e *players.Exporter) {
		e.SendAll("c2", "e1")
		revision := uint64(100)
		for chunk := range slices.Chunk(all, 500) {
			e.Send(players.Upserts(revision+1, chunk...))
			revision += uint64(len(chunk))
			e.Acked(revision)
		}
	}
	// idle measures the whole process at rest; the test does nothing meanwhile. On a busy machine, work of the 5,000
	// Services continues after the last of them has failed. The runtime collects garbage at least every two minutes, so
	// collect before.
	idle := func(t *testing.T) {
		t.Helper()
		seconds := func(n int) time.Duration {
			before := processTime(t)
			time.Sleep(time.Duration(n) * time.Second)
			return processTime(t) - before
		}
		runtime.GC()
		http.DefaultClient.CloseIdleConnections()
		within(t, 10*time.Minute, "it comes to rest", func() (bool, string) {
			used := seconds(3)
			return used < 3*time.Second/50, fmt.Sprintf("%s of processor time in 3 s", used)
		})
		const measured = 10
		// Use the best of three: a steady cost shows in each, but an apiserver that gets no CPU time ends watches, and
		// everything is listed again.
		used := seconds(measured)
		for tries := 1; tries < 3 && used > measured*time.Second/100; tries++ {
			used = min(used, seconds(measured))
		}
		t.Logf("%s of %d s", used, measured)
		if used > measured*time.Second/100 {
			t.Errorf("%s of processor time in %d s, want 1 %% at most", used, measured)
		}
	}
	// refused is idle with Services that the apiserver refuses, once all have failed.
	refused := func(t *testing.T, all func() bool) {
		t.Helper()
		stop := w.start(w.cfg)
		defer stop()
		e := w.exporter("c2")
		defer e.Cancel()
		send(e)
		within(t, 10*time.Minute, "all have failed", func() (bool, string) {
			time.Sleep(time.Second) // metrics cost CPU time of the same process
			n := w.failures(t, "error")
			return n >= services && all(), fmt.Sprint(n)
		})
		idle(t)
	}
	t.Run("EndpointSlices cannot be listed", func(t *testing.T) {
		limited := rest.CopyConfig(w.rest)
		limited.Impersonate = rest.ImpersonationConfig{UserName: "broker"}
		testkit.Value(w.admin.RbacV1().ClusterRoles().Create(ctx,
			&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "broker"}, Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{""}, Resources: []string{"services", "configmaps", "events", "namespaces"},
					Verbs: []string{"*"}},
				{APIGroups: []string{"coordination.k8s.io", "events.k8s.io", "apiextensions.k8s.io", v1alpha1.GroupVersion.Group},
					Resources: []string{"*"}, Verbs: []string{"*"}},
			}}, metav1.CreateOptions{}))(t)
		testkit.Value(w.admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "broker"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName,
				Kind: "ClusterRole", Name: "broker"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "broker"}},
		}, metav1.CreateOptions{}))(t)
		cfg := *w.cfg
		cfg.Kube.KubeConfigPath = kubetest.Kubeconfig(t, limited)
		stop, _ := w.launch(&cfg)
		defer stop()
		// It never becomes ready, but it serves exporters before that.
		eventually(t, "it listens", func() (bool, string) {
			conn, err := net.Dial("tcp", cfg.Listen.Federation)
			if err != nil {
				return false, err.Error()
			}
			return true, fmt.Sprint(conn.Close())
		})
		e := w.exporter("c2")
		defer e.Cancel()
		send(e)
		idle(t)
	})
	t.Run("a webhook is down", func(t *testing.T) {
		url := "https://" + loopback.Address(t)
		testkit.Value(w.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx,
			&admissionv1.ValidatingWebhookConfiguration{
				ObjectMeta: metav1.ObjectMeta{Name: "down"},
				Webhooks: []admissionv1.ValidatingWebhook{{
					Name: "down.example.org", ClientConfig: admissionv1.WebhookClientConfig{URL: &url},
					FailurePolicy: ptr.To(admissionv1.Fail),
					SideEffects:   ptr.To(admissionv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
					NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "semaphore"}},
					Rules: []admissionv1.RuleWithOperations{{
						Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
						Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
							Resources: []string{"services"}},
					}},
				}},
			}, metav1.CreateOptions{}))(t)
		defer func() {
			if err := w.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(ctx, "down",
				metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}()
		refused(t, func() bool {
			_, text := get("http://" + w.cfg.Listen.HTTP + "/metrics")
			// The probing object fails several times meanwhile.
			return strings.Contains(text, "semaphore_broker_queue_depth{queue=\"service\"} 0\n")
		})
	})
	t.Run("a policy refuses each", func(t *testing.T) {
		testkit.Value(w.admin.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(ctx,
			&admissionv1.ValidatingAdmissionPolicy{
				ObjectMeta: metav1.ObjectMeta{Name: "none"},
				Spec: admissionv1.ValidatingAdmissionPolicySpec{
					FailurePolicy: ptr.To(admissionv1.Fail),
					MatchConstraints: &admissionv1.MatchResources{
						NamespaceSelector: &metav1.LabelSelector{
							MatchLabels: map[string]string{corev1.LabelMetadataName: "semaphore"},
						},
						ResourceRules: []admissionv1.NamedRuleWithOperations{{
							RuleWithOperations: admissionv1.RuleWithOperations{
								Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
								Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
									Resources: []string{"services"}},
							},
						}},
					},
					Validations: []admissionv1.Validation{{Expression: "false", Message: "no Services here"}},
				},
			}, metav1.CreateOptions{}))(t)
		testkit.Value(w.admin.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(ctx,
			&admissionv1.ValidatingAdmissionPolicyBinding{
				ObjectMeta: metav1.ObjectMeta{Name: "none"},
				Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "none",
					ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
			}, metav1.CreateOptions{}))(t)
		eventually(t, "the policy refuses", func() (bool, string) {
			_, err := w.admin.CoreV1().Services("semaphore").Create(ctx, &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: "probe"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
			}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err != nil && strings.Contains(err.Error(), "no Services here"), fmt.Sprint(err)
		})
		refused(t, func() bool { return true })
	})
}

func processTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	testkit.Must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
