package apply

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestFamilies has Services of each IP family on clusters of one family and of both: each has those that are wanted
// of it and that the cluster can give, when it is made, when the source changes, and where an earlier release made it
// with both. The policy that ships, without its key, lets the broker do that.
func TestFamilies(t *testing.T) {
	const v4, v6 = "10.96.0.0/16", "fd00:10:96::/112"
	for _, c := range []struct {
		name, ranges   string
		only4, only6   string // of Services whose source has one family
		both           string // where the source has both, or does not say
		fromBoth4, to6 string // one with both of which IPv4 alone is wanted then, and IPv6 alone after that
	}{
		{"IPv4", v4, "[IPv4]", "[IPv4]", "[IPv4]", "[IPv4]", "[IPv4]"},
		{"IPv4 and IPv6", v4 + "," + v6, "[IPv4]", "[IPv6]", "[IPv4 IPv6]", "[IPv4]", "[IPv6]"},
		{"IPv6 and IPv4", v6 + "," + v4, "[IPv4]", "[IPv6]", "[IPv6 IPv4]", "[IPv4]", "[IPv6]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := kubetest.StartWith(t, c.ranges)
			ctx, admin := t.Context(), kubernetes.NewForConfigOrDie(cfg)
			kubetest.Namespace(t, admin, "mirrors")
			judgeAddresses(t, admin)
			client, requests := counted(cfg)
			w, d := desired[*corev1.Service]()
			o := Services(client, "mirrors", nil, d, options(t))
			of := func(name string, headless bool, families ...corev1.IPFamily) {
				s := service(name, "c2", 80, headless)
				if len(families) == 1 {
					s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = ptr.To(corev1.IPFamilyPolicySingleStack), families
				}
				w.set(s)
				o.Mark(name, "c2", time.Now())
			}
			has := func(name, want string) {
				t.Helper()
				eventually(t, name, func() (bool, string) {
					s, err := admin.CoreV1().Services("mirrors").Get(ctx, name, metav1.GetOptions{})
					return err == nil && fmt.Sprint(s.Spec.IPFamilies) == want &&
							(s.Spec.ClusterIP == "None" || len(s.Spec.ClusterIPs) == len(s.Spec.IPFamilies)),
						fmt.Sprint(s.Spec.IPFamilies, s.Spec.ClusterIPs, err, finding.Texts(o.Findings()))
				})
			}
			of("only4", false, corev1.IPv4Protocol)
			of("only6", false, corev1.IPv6Protocol)
			of("both", false)
			of("changes", false)
			of("headless", true, corev1.IPv4Protocol)
			testkit.Run(t, o.Run)
			has("only4", c.only4)
			has("only6", c.only6)
			has("both", c.both)
			has("changes", c.both)
			has("headless", "[IPv4]")
			of("changes", false, corev1.IPv4Protocol)
			has("changes", c.fromBoth4)
			of("changes", false, corev1.IPv6Protocol)
			has("changes", c.to6)
			if c.ranges != v4 {
				of("changes", false)
				has("changes", map[bool]string{true: "[IPv6 IPv4]", false: "[IPv4 IPv6]"}[c.to6 == "[IPv6]"])
			}
			// A value that this cluster does not know stops nothing.
			s := service("distributed", "c2", 80, false)
			s.Spec.TrafficDistribution = ptr.To("PreferTheMoon")
			w.set(s)
			o.Mark("distributed", "c2", time.Now())
			has("distributed", c.both)
			s = service("both", "c2", 81, false)
			s.Spec.TrafficDistribution = ptr.To("PreferSomethingElse")
			w.set(s)
			o.Mark("both", "c2", time.Now())
			eventually(t, "the port is another", func() (bool, string) {
				s, err := admin.CoreV1().Services("mirrors").Get(ctx, "both", metav1.GetOptions{})
				return err == nil && s.Spec.Ports[0].Port == 81, fmt.Sprint(err, finding.Texts(o.Findings()))
			})
			// All is as it is wanted: nothing is written, and no other manager is blamed.
			time.Sleep(200 * time.Millisecond)
			requests.Take()
			for _, name := range []string{"only4", "only6", "both", "changes", "headless", "distributed"} {
				o.Mark(name, "c2", time.Now())
			}
			time.Sleep(300 * time.Millisecond)
			if got := withoutLists(requests.Take()); len(got) > 0 {
				t.Errorf("requests %v", got)
			}
			if p := finding.Texts(o.Findings()); len(p) > 0 {
				t.Errorf("problems %q", p)
			}
		})
	}
}
