package migrate

import (
	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Ways to move a set that stays where it is.
func TestHints(t *testing.T) {
	cfg := &config.Broker{LabelDomains: []string{naming.PolicyLabelDomain}, Remotes: []config.Remote{{Name: "c2"}}}
	cfg.Sets.AdoptFrom = []string{"semaphore-policy"}
	a := Adopter[*calicov3.GlobalNetworkSet]{Sets: &Sets{Config: func() *config.Broker { return cfg }}}
	for _, c := range []struct {
		labels map[string]string
		want   string
	}{
		{nil, ""},
		{map[string]string{"managed-by": "helm"}, ""},
		{map[string]string{"managed-by": "calico-global-network-sync-operator"},
			"sets.adoptFrom: [calico-global-network-sync-operator]"},
		{map[string]string{"managed-by": "semaphore-policy", "semaphore.uw.systems/cluster": "c2"},
			"labelDomains: [semaphore.uw.systems]"},
		{map[string]string{"managed-by": "semaphore-policy", "policy.semaphore.uw.io/cluster": "c9"},
			"its labels name no configured remote"},
		{map[string]string{"managed-by": "semaphore-policy", naming.LabelManagedBy: "argocd"}, ""},
	} {
		if got := a.hint(&calicov3.GlobalNetworkSet{ObjectMeta: metav1.ObjectMeta{Labels: c.labels}}); !strings.Contains(got,
			c.want) || c.want == "" && got != "" {
			t.Errorf("%v: %q, want %q", c.labels, got, c.want)
		}
	}
}

// Ways to move a Service that stays where it is.
func TestServiceHints(t *testing.T) {
	mirror := func(prefix string) map[string]string {
		return map[string]string{naming.LabelMirrored: "true", naming.LabelMirrorPrefixSync: prefix}
	}
	global := map[string]string{naming.LabelGlobal: "true"}
	for _, test := range []struct {
		from     string
		name     string
		labels   map[string]string
		selector map[string]string
		want     string // of the hint; "mine" where it is taken over
	}{
		{"", "c2-shop-73736d-echo", mirror("c2"), nil, "set services.adoptFrom: [semaphore-service-mirror] to take it over"},
		{"semaphore-service-mirror", "c2-shop-73736d-echo", mirror("c2"), nil, "mine"},
		{"semaphore-service-mirror", "gl-shop-73736d-echo", global, nil, "mine"},
		{"semaphore-service-mirror", "c9-shop-73736d-echo", mirror("c9"), nil,
			`with the prefix "c9", which is the servicePrefix of no configured remote`},
		{"semaphore-service-mirror", "c2-shop-echo", mirror("c2"), nil,
			"its name is none that semaphore-service-mirror gives: c2-NAMESPACE-73736d-NAME"},
		{"semaphore-service-mirror", "shop-73736d-echo", global, nil, "gl-NAMESPACE-73736d-NAME"},
		{"semaphore-service-mirror", "c2-shop-73736d-echo", nil, nil, ""},
		{"semaphore-service-mirror", "c2-shop-73736d-echo", mirror("c2"), map[string]string{"app": "x"}, ""},
		{"semaphore-service-mirror", "c2-shop-73736d-echo", with(mirror("c2"), naming.LabelManagedBy, "argocd"), nil, ""},
	} {
		cfg := &config.Broker{Remotes: []config.Remote{{Name: "c2", ServicePrefix: "c2"}}}
		cfg.Services.AdoptFrom = []string{test.from}
		a := &Services{Config: func() *config.Broker { return cfg }}
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: test.name, Labels: test.labels},
			Spec: corev1.ServiceSpec{Selector: test.selector}}
		from, mine := a.source(s)
		if mine != (test.want == "mine") {
			t.Errorf("%s with %v: taken over %v", test.name, test.labels, mine)
		}
		if mine && (from.namespace != "shop" || from.name != "echo") {
			t.Errorf("%s came from %+v", test.name, from)
		}
		if got := a.hint(s); !mine && (!strings.Contains(got, test.want) || test.want == "" && got != "") {
			t.Errorf("%s with %v: %q, want %q", test.name, test.labels, got, test.want)
		}
	}
}
