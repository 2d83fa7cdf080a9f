package link

import (
	"bytes"
	"context"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/ctl/apply"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/bounds"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestLacks: the bounds of agents are as desired if each remote has its pod subnets, in any order, and one that is gone
// is not there.
func TestLacks(t *testing.T) {
	pods := func(texts ...string) (out []netip.Prefix) {
		for _, text := range texts {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	file := bounds.RemotesText([]config.Remote{{Name: "c2", PodSubnets: []string{"10.3.0.0/16", "10.2.0.0/16"}},
		{Name: "c4", PodSubnets: []string{"10.4.0.0/16"}}})
	for _, test := range []struct {
		name string
		d    desired
		file string
		want string
	}{
		{"nothing is written yet", desired{"c2": pods("10.2.0.0/16"), "c1": pods("10.1.0.0/16")}, "", "c1 c2"},
		{"one is missing", desired{"c2": pods("10.2.0.0/16", "10.3.0.0/16"), "c5": pods("10.5.0.0/16")}, file, "c5"},
		{"as desired", desired{"c2": pods("10.2.0.0/16", "10.3.0.0/16"), "c4": pods("10.4.0.0/16")}, file, ""},
		{"other subnets", desired{"c2": pods("10.2.0.0/16")}, file, "c2"},
		{"not gone yet", desired{"c4": nil}, file, "c4"},
		{"gone", desired{"c9": nil}, file, ""},
		{"gone, and no other is left", desired{"c9": nil}, "", ""},
	} {
		if got := strings.Join(test.d.lacks(test.file), " "); got != test.want {
			t.Errorf("%s: %q is lacking, want %q", test.name, got, test.want)
		}
	}
}

// createPart creates the pod of a part; the namespace has a ServiceAccount.
func createPart(t *testing.T, admin kubernetes.Interface, name, part string) {
	t.Helper()
	kubetest.Create(t, admin.CoreV1().Pods("semaphore"), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app.kubernetes.io/name": "semaphore",
			"app.kubernetes.io/component": part}},
		Spec: corev1.PodSpec{AutomountServiceAccountToken: new(bool),
			Containers: []corev1.Container{{Name: part, Image: "semaphore"}}}})
}

// TestLinkDelivers: link and unlink have the kubelets of both clusters give agents what changed.
func TestLinkDelivers(t *testing.T) {
	_, admins, _, ctl := ctltest.Linkable(t)
	for name, admin := range admins {
		kubetest.Create(t, admin.CoreV1().ServiceAccounts("semaphore"),
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
		createPart(t, admin, "agent-1", "agent")
		ctl(0, "pki init --context "+name+" --cluster "+name)
		ctltest.Patch(t, admin.CoreV1().Services("semaphore"), "semaphore-broker-federation", `{"spec":{"type":"NodePort"}}`)
		// As the exporter writes it, once there is a RemoteCluster.
		other := map[string]string{"c1": "c2", "c2": "c1"}[name]
		kubetest.Create(t, admin.CoreV1().ConfigMaps("semaphore"), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: bounds.RemotesIn},
			Data: map[string]string{bounds.RemotesFile: bounds.RemotesText([]config.Remote{{Name: other,
				PodSubnets: []string{ctltest.PodSubnets[other]}}})}})
	}
	before := map[string]string{}
	for _, verb := range []string{"link --context c1 --context c2 --yes", "unlink --context c1,c2 --yes"} {
		ctl(0, verb)
		for name, admin := range admins {
			at := kubetest.Get(t, admin.CoreV1().Pods("semaphore"), "agent-1").Annotations[apply.Refreshed]
			if at == "" || at == before[name] {
				t.Errorf("%s: the agent of %s was refreshed at %q, before at %q", verb, name, at, before[name])
			}
			before[name] = at
			ctltest.Patch(t, admin.CoreV1().ConfigMaps("semaphore"), bounds.RemotesIn, `{"data":null}`)
		}
	}
}

// TestDeliver: agents' pods change once the exporter has written the bounds, and then twice, as a kubelet may see the
// first change too early, with those of the broker. No pod of the exporter changes, and what prevents it is said, and
// no error.
func TestDeliver(t *testing.T) {
	cfg := kubetest.Start(t)
	admin := kubernetes.NewForConfigOrDie(cfg)
	kubetest.Namespace(t, admin, "semaphore")
	pods, maps := admin.CoreV1().Pods("semaphore"), admin.CoreV1().ConfigMaps("semaphore")
	// The second look at what the exporter has written is where a first wait ends.
	short, cancel := context.WithCancel(t.Context())
	defer cancel()
	looks := 0
	watched := rest.CopyConfig(cfg)
	watched.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return kubetest.RoundTripper(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/configmaps/"+bounds.RemotesIn) {
				if looks++; looks == 2 {
					cancel()
				}
			}
			return next.RoundTrip(r)
		})
	})
	var said bytes.Buffer
	c := testkit.Value(fleet.NewCluster("c1", "semaphore", watched))(t)
	wants := map[*apply.Applier]desired{
		apply.New(c, &said): {"c2": {netip.MustParsePrefix("10.2.0.0/16")}}}
	kubetest.Create(t, admin.CoreV1().ServiceAccounts("semaphore"),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	deliver(t.Context(), wants) // no agents, so there is nothing to wait for
	if said.Len() > 0 {
		t.Errorf("without agents it says %s", said.String())
	}

	for name, part := range map[string]string{"agent-1": "agent", "agent-2": "agent", "broker-1": "broker",
		"exporter-1": "exporter"} {
		createPart(t, admin, name, part)
	}
	refreshed := func(name string) string {
		t.Helper()
		return kubetest.Get(t, pods, name).Annotations[apply.Refreshed]
	}
	deliver(short, wants)
	if refreshed("agent-1") != "" || !strings.Contains(said.String(), "c1: agents accept the change when their kubelets "+
		"next look, within two minutes by default: waited ") || !strings.Contains(said.String(),
		"the exporter has not written c2 to the ConfigMap semaphore-remotes yet") {
		t.Errorf("before the exporter has written: refreshed %q, says %s", refreshed("agent-1"), said.String())
	}

	watch := testkit.Value(pods.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=agent-1"}))(t)
	defer watch.Stop()
	var wrote time.Time
	writing := time.AfterFunc(time.Second, func() {
		wrote = time.Now().UTC()
		_, _ = maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: bounds.RemotesIn},
			Data: map[string]string{bounds.RemotesFile: bounds.RemotesText([]config.Remote{{Name: "c2",
				PodSubnets: []string{"10.2.0.0/16"}}})}}, metav1.CreateOptions{})
	})
	defer writing.Stop()
	said.Reset()
	deliver(t.Context(), wants)
	var at []string
	for len(at) < 2 {
		e, open := <-watch.ResultChan()
		pod, ok := e.Object.(*corev1.Pod)
		if !open || !ok {
			t.Fatalf("the watch ended with %v", e)
		}
		if a := pod.Annotations[apply.Refreshed]; a != "" {
			at = append(at, a)
		}
	}
	first := testkit.Value(time.Parse(time.RFC3339Nano, at[0]))(t)
	if first.Before(wrote) || at[0] == at[1] || refreshed("agent-2") != at[1] || refreshed("broker-1") < at[1] ||
		refreshed("exporter-1") != "" {
		t.Errorf("written at %s, refreshed at %q; agent-2 at %q, the broker at %q, the exporter at %q; says %s", wrote, at,
			refreshed("agent-2"), refreshed("broker-1"), refreshed("exporter-1"), said.String())
	}
	if strings.Contains(said.String(), "when their kubelets next look") {
		t.Errorf("it says %s", said.String())
	}
}
