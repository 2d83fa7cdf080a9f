package explain

import (
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/ctl/explain/policy"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/naming"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestOwnName: the name of a Service of the source's own cluster, however it is given, is followed to an endpoint of
// another cluster while it leads to one, with the port of the pods there; else to one of its own cluster. A Service
// that asks for no other cluster is none that semaphore knows of.
func TestOwnName(t *testing.T) {
	cfg := kubetest.Start(t)
	admin := kubernetes.NewForConfigOrDie(cfg)
	objects := testkit.Value(fleet.New("c1", cfg))(t)
	kubetest.Namespace(t, admin, "shop")
	var web *corev1.Service
	for name, use := range map[string]map[string]string{"web": {naming.AnnotationOwnName: "failover"}, "plain": nil} {
		s := kubetest.Create(t, admin.CoreV1().Services("shop"), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: use},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}})
		if use != nil {
			web = s
		}
	}
	all := admin.DiscoveryV1().EndpointSlices("shop")
	slice := func(name string, labels map[string]string, port int32, ready bool, addresses ...string) {
		t.Helper()
		s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, ObjectMeta: metav1.ObjectMeta{Name: name,
			Labels: labels}, Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: &port}}}
		s.Labels[discoveryv1.LabelServiceName] = "web"
		for _, a := range addresses {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a},
				Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
		}
		kubetest.Create(t, all, s)
	}
	ours := func(cluster string) map[string]string {
		return map[string]string{naming.LabelOwnName: "failover", naming.LabelSourceCluster: cluster}
	}
	slice("web-x7k2", map[string]string{}, 8080, true, "10.1.0.5")
	look := func(text string) (*policy.Facts, uint16) {
		t.Helper()
		here := &side{name: "c1", objects: objects, broker: &semaphorev1.GetStatusResponse{
			Findings: []*semaphorev1.Finding{{Code: string(finding.NoTunnel), Cluster: "c3", First: []string{"node m3"}}},
			OwnNames: []*semaphorev1.OwnNameStatus{{Namespace: "shop", Service: "web", Use: "failover",
				Clusters: []string{"c2"}, All: 1, Enough: "1"}}}}
		g := &pathGatherer{explainer: &explainer{domain: "cluster.local"}, sides: []*side{here}, source: here,
			protocol: "TCP", facts: &policy.Facts{Now: time.Now(), NotRead: map[finding.Code][]string{},
				Source: policy.Pod{Cluster: "c1", IP: netip.MustParseAddr("10.1.0.9")}}}
		if err := g.findTarget(t.Context(), testkit.Value(parseEnd(text))(t)); err != nil {
			if g.facts.Name != nil {
				t.Errorf("%s: %v", text, err)
			}
			return nil, 0
		}
		return g.facts, g.port
	}
	f, port := look("shop/web")
	if f == nil || f.Target.Cluster != "c1" || f.Target.IP.String() != "10.1.0.5" || len(f.Name.Own.Others) > 0 ||
		f.Name.Own.Ready != 1 || port != 8080 {
		t.Fatalf("while it leads to no other cluster: %+v", f)
	}
	must(t, all.Delete(t.Context(), "web-x7k2", metav1.DeleteOptions{}))
	slice("web-x7k2", map[string]string{}, 8080, false, "10.1.0.5")
	slice("gl-shop-73736d-web-c2-1", ours("c2"), 9090, true, "10.2.0.7", "10.2.0.5")
	slice("gl-shop-73736d-web-c3-1", ours("c3"), 9191, true, "10.3.0.5")
	for _, text := range []string{"shop/web", "c1/shop/web", "web.shop.svc.cluster.local", web.Spec.ClusterIP} {
		f, port := look(text)
		if f == nil || f.Name == nil || f.Name.Text != "web.shop.svc.cluster.local" || f.Target.Cluster != "c2" ||
			f.Target.IP.String() != "10.2.0.5" || f.Slices.Total != 4 || f.Slices.Ready != 3 || f.Name.Own.Total != 1 ||
			f.Name.Own.Ready != 0 || !slices.Equal(f.Name.Own.Others, []string{"2 of c2", "1 of c3"}) ||
			!slices.Equal(f.Slices.NoTunnel, []string{"node m3"}) || f.Mirror.Name != "web" ||
			f.Name.Own.Says != "c2 is in use: 0 of 1 ready here, and enough is 1" || port != 9090 {
			t.Errorf("%s: %+v", text, f)
		}
	}
	for _, text := range []string{"shop/plain", "plain.shop.svc.cluster.local"} {
		if f, _ := look(text); f != nil {
			t.Errorf("%s: %+v", text, f)
		}
	}
}

// TestWhatDoesNotExistIsSaid: a node and a pod that the apiserver does not have are named, with this reason.
func TestWhatDoesNotExistIsSaid(t *testing.T) {
	empty := kubetest.RoundTripper(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusNotFound, Body: http.NoBody, Request: r}, nil
	})
	objects := testkit.Value(fleet.New("c2", &rest.Config{Host: "http://c2", Transport: empty}))(t)
	g := &pathGatherer{target: &side{name: "c2", objects: objects}, facts: &policy.Facts{
		Target: policy.Pod{Node: "m1"}, NotRead: map[finding.Code][]string{}}}
	node := g.targetNode(t.Context())
	if said := g.facts.NotRead[finding.PathFarNode]; node != nil || len(said) != 1 ||
		said[0] != "node m1 of c2: it does not exist" {
		t.Errorf("of a node: %v, %q", node, said)
	}
	if _, _, err := readFor(t.Context(), objects, "shop", "web"); err == nil ||
		err.Error() != "pod shop/web: it does not exist" {
		t.Errorf("of a pod: %v", err)
	}
}
