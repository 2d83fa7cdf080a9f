package deploy_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// token returns clients with a real token of a ServiceAccount of the manifests, like an attacker who has stolen it.
func (s *server) token(t *testing.T, namespace, account string) (kubernetes.Interface, dynamic.Interface) {
	t.Helper()
	cfg := s.tokenConfig(t, namespace, account)
	return kubernetes.NewForConfigOrDie(cfg), dynamic.NewForConfigOrDie(cfg)
}

// tokenConfig returns the client configuration for such a token.
func (s *server) tokenConfig(t *testing.T, namespace, account string) *rest.Config {
	t.Helper()
	answer := testkit.Value(s.client("").CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{}))(t)
	cfg := rest.AnonymousClientConfig(s.admin)
	cfg.BearerToken, cfg.WarningHandler = answer.Status.Token, s.refused
	return cfg
}

// podToken returns a client with a pod-bound token of a ServiceAccount, as kubelet gives it to a container, and the
// pod.
func (s *server) podToken(t *testing.T, namespace, account, name string) (kubernetes.Interface, *corev1.Pod) {
	t.Helper()
	admin := s.client("")
	pod := kubetest.Temporary(t, admin.CoreV1().Pods(namespace), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{ServiceAccountName: account,
			Containers: []corev1.Container{{Name: "broker", Image: "semaphore"}}},
	})
	answer := testkit.Value(admin.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account,
		&authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod",
				APIVersion: "v1", Name: pod.Name, UID: pod.UID}},
		}, metav1.CreateOptions{}))(t)
	cfg := rest.AnonymousClientConfig(s.admin)
	cfg.BearerToken, cfg.WarningHandler = answer.Status.Token, s.refused
	return kubernetes.NewForConfigOrDie(cfg), pod
}

// leaderSlice returns the slice that the leader creates for one of the broker's own Services, with changes.
func leaderSlice(service string, pod *corev1.Pod,
	change ...func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: service + "-leader-ipv4", Labels: map[string]string{
				discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "semaphore-broker-leader",
				"app.kubernetes.io/name": "semaphore", "app.kubernetes.io/component": "broker",
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"10.1.7.7"}, NodeName: ptr.To("n1"),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		}},
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("federation"), Port: ptr.To[int32](8443)},
			{Name: ptr.To("peering"), Port: ptr.To[int32](8444)}},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

// subnetsOf returns the ConfigMap by which policies judge.
func subnetsOf(t *testing.T, admin kubernetes.Interface, namespace string) *corev1.ConfigMap {
	t.Helper()
	list, err := admin.CoreV1().ConfigMaps(namespace).List(t.Context(),
		metav1.ListOptions{LabelSelector: "semaphore.uw.io/subnets=true"})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%d ConfigMaps have subnets: %v", len(list.Items), err)
	}
	return &list.Items[0]
}

// refusedFor waits until a request is refused for a reason: policies see a change of their parameters a little later.
func refusedFor(t *testing.T, what, reason string, do func() error) {
	t.Helper()
	testkit.Eventually(t, 3*time.Minute, what, func() error {
		if err := do(); err == nil || !strings.Contains(err.Error(), reason) {
			return fmt.Errorf("the answer is %v; want %q", err, reason)
		}
		return nil
	})
}

// with returns a map with another value.
func with(m map[string]any, key string, value any) map[string]any {
	out := maps.Clone(m)
	out[key] = value
	return out
}

// mirrorService and mirrorSlice return objects as the broker creates them, with changes.
func mirrorService(name string, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"app.kubernetes.io/managed-by": "semaphore-broker",
				"semaphore.uw.io/source-cluster": "c2", "mirrored-svc": "true"},
			Annotations: map[string]string{"semaphore.uw.io/source-namespace": "shop", "semaphore.uw.io/source-name": "echo"},
		},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

func mirrorSlice(name string, change ...func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{
				"app.kubernetes.io/managed-by": "semaphore-broker", "semaphore.uw.io/source-cluster": "c2", "mirrored-svc": "true",
				discoveryv1.LabelServiceName: "c2-shop-73736d-echo", discoveryv1.LabelManagedBy: "semaphore-broker",
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.2.0.5"}}},
		Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](80)}},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

// unlabelled returns the attempts to set the broker's label on an object that has lost it: on one that the broker made,
// and on one that somebody else made like it.
func (s *server) unlabelled(t *testing.T, stolen dynamic.Interface, kind schema.GroupVersionKind, ns string,
	object runtime.Object) []attempt {
	t.Helper()
	resource, _ := meta.UnsafeGuessKindToResource(kind)
	made := &unstructured.Unstructured{
		Object: testkit.Value(runtime.DefaultUnstructuredConverter.ToUnstructured(object))(t)}
	made.SetGroupVersionKind(kind)
	client := func(from dynamic.Interface) dynamic.ResourceInterface {
		if ns == "" {
			return from.Resource(resource)
		}
		return from.Resource(resource).Namespace(ns)
	}
	admin := client(dynamic.NewForConfigOrDie(s.admin))
	by := func(maker string, then func(have *unstructured.Unstructured) error) func() error {
		return func() error {
			testkit.Value(admin.Create(t.Context(), made, metav1.CreateOptions{FieldManager: maker}))(t)
			defer admin.Delete(t.Context(), made.GetName(), metav1.DeleteOptions{})
			return then(testkit.Value(admin.Patch(t.Context(), made.GetName(), types.MergePatchType,
				[]byte(`{"metadata":{"labels":{"app.kubernetes.io/managed-by":null}}}`), metav1.PatchOptions{}))(t))
		}
	}
	label := func(have *unstructured.Unstructured) error {
		have.SetLabels(made.GetLabels())
		have.SetManagedFields(nil)
		_, err := client(stolen).Update(t.Context(), have, dryUpdate)
		return err
	}
	remove := func(have *unstructured.Unstructured) error {
		return client(stolen).Delete(t.Context(), have.GetName(), dryDelete)
	}
	const changes = "changes and deletes"
	return []attempt{
		{resource.Resource + " of its own that lost the label", by("semaphore-broker", label), nil},
		{resource.Resource + " of its own that lost the label, deleted", by("semaphore-broker", remove), says{changes}},
		{resource.Resource + " that somebody else made like it", by("kubectl", label), says{changes}},
	}
}

// mirrorEndpoints returns Endpoints of a mirror. It is unstructured because the type is deprecated.
func mirrorEndpoints(name string, labels map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Endpoints",
		"metadata": map[string]any{"name": name, "labels": labels},
		"subsets": []any{map[string]any{"addresses": []any{map[string]any{"ip": "10.2.0.5"}},
			"ports": []any{map[string]any{"port": int64(80)}}}},
	}}
}

func addresses(all ...string) func(*discoveryv1.EndpointSlice) {
	return func(s *discoveryv1.EndpointSlice) {
		s.Endpoints = nil
		for _, a := range all {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
		}
	}
}

// testBrokersWrites attacks with a stolen broker token, and again with that of a broker whose overlay has a namePrefix.
// It can write what the broker writes, and nothing else.
func testBrokersWrites(t *testing.T, s *server) {
	kubetest.InstallCalico(t, s.admin, kubetest.CalicoCRD, "globalnetworksets", "networksets", "ippools", "ipreservations")
	const prefixed = `
namePrefix: other-
resources: [DEPLOY/example/c1]
components: [DEPLOY/features/networksets, DEPLOY/features/tunnel-addresses]
patches:
  - target: {kind: Service, name: semaphore-broker-federation}
    patch: |
      - {op: remove, path: /spec/ports/0/nodePort}
`
	for _, c := range []struct{ name, overlay, account string }{
		{"as shipped", "resources: [DEPLOY/example/c1]\n" +
			"components: [DEPLOY/features/networksets, DEPLOY/features/tunnel-addresses]\n", "semaphore-broker"},
		{"with a namePrefix", prefixed, "other-semaphore-broker"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.applied(t, c.overlay)
			attackWithToken(t, s, c.account)
			exporterWritesByName(t, s, strings.Replace(c.account, "broker", "exporter", 1))
		})
		if t.Failed() {
			return
		}
	}
}

// onlyNamed is the refusal of a ConfigMap with another name. The policy appends the name.
const onlyNamed = "may make only the configmaps that it may update, not "

// exporterWritesByName checks that a stolen exporter token, for any account name, can create only the ConfigMaps that
// it may update.
func exporterWritesByName(t *testing.T, s *server, account string) {
	t.Helper()
	const ns = "semaphore"
	stolen, _ := s.token(t, ns, account)
	for name, may := range map[string]bool{"semaphore-remotes": true, "semaphore-exporter-remotes": true,
		"semaphore-subnets-2": false, "semaphore-broker-remotes": false} {
		err := tries(t, stolen.CoreV1().ConfigMaps(ns), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}})()
		if may && err != nil || !may && (err == nil || !strings.Contains(err.Error(), onlyNamed+name)) {
			t.Errorf("ConfigMap %s made by %s: %v", name, account, err)
		}
	}
}

func attackWithToken(t *testing.T, s *server, account string) {
	const ns = "semaphore"
	ctx := t.Context()
	admin := s.client("")
	stolen, dynamicStolen := s.token(t, ns, account)
	// Grant more than its roles do, to show that the policies do not depend on them.
	bind(t, admin, rbacv1.PolicyRule{APIGroups: []string{"", "discovery.k8s.io"},
		Resources: []string{"services", "services/status", "endpoints", "endpointslices"}, Verbs: []string{"*"}},
		"system:serviceaccount:"+ns+":"+account)
	services, slicesOf := stolen.CoreV1().Services(ns), stolen.DiscoveryV1().EndpointSlices(ns)

	// Objects of another owner: a Service with a selector, and an EndpointSlice of it.
	victim := mirrorService("victim",
		func(s *corev1.Service) { s.Labels = nil; s.Spec.Selector = map[string]string{"app": "victim"} })
	kubetest.Temporary(t, admin.CoreV1().Services(ns), victim)
	others := mirrorSlice("victim-x", func(s *discoveryv1.EndpointSlice) {
		s.Labels = map[string]string{discoveryv1.LabelServiceName: "victim",
			discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}
	})
	kubetest.Temporary(t, admin.DiscoveryV1().EndpointSlices(ns), others)
	unconfined := dynamic.NewForConfigOrDie(s.admin).Resource(schema.GroupVersionResource{Version: "v1",
		Resource: "endpoints"}).Namespace(ns)
	for name, labels := range map[string]map[string]any{"victim": nil,
		"c2-shop-73736d-theirs": {"mirrored-svc": "true", "mirror-svc-prefix-sync": "c2"}} {
		kubetest.CreateObject(t, unconfined, mirrorEndpoints(name, labels))
	}
	t.Cleanup(func() {
		unconfined.Delete(context.Background(), "victim", metav1.DeleteOptions{})
		unconfined.Delete(context.Background(), "c2-shop-73736d-theirs", metav1.DeleteOptions{})
	})

	create := func(change ...func(*corev1.Service)) func() error {
		return tries(t, services, mirrorService("c2-shop-73736d-try", change...))
	}
	configMap := func(meta metav1.ObjectMeta) func() error {
		return tries(t, stolen.CoreV1().ConfigMaps(ns), &corev1.ConfigMap{ObjectMeta: meta})
	}
	endpoints := schema.GroupVersionResource{Version: "v1", Resource: "endpoints"}
	endpointsOf := dynamicStolen.Resource(endpoints).Namespace(ns)
	createSlice := func(change ...func(*discoveryv1.EndpointSlice)) func() error {
		return tries(t, slicesOf, mirrorSlice("try", change...))
	}
	// Changes of the existing mirror and of the victim.
	update := func(name string, change func(*corev1.Service)) func() error {
		return func() error {
			have := kubetest.Get(t, admin.CoreV1().Services(ns), name)
			change(have)
			_, err := services.Update(ctx, have, dryUpdate)
			return err
		}
	}
	spec := func(change func(*corev1.ServiceSpec)) func(*corev1.Service) {
		return func(s *corev1.Service) { change(&s.Spec) }
	}
	// The mirror gets an address of the other family too: the one that is named, or one of the apiserver's choice.
	second := func(ips []string, change ...func(*corev1.Service)) func() error {
		return update("c2-shop-73736d-echo", func(s *corev1.Service) {
			s.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyPreferDualStack)
			s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
			s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, ips...)
			for _, c := range change {
				c(s)
			}
		})
	}
	// The apiserver records no fields of an update that resets them.
	untracked := func(s *corev1.Service) { s.ManagedFields = []metav1.ManagedFieldsEntry{{}} }
	const (
		kind       = "of type ClusterIP only"
		labelled   = "writes Services with the label app.kubernetes.io/managed-by=semaphore-broker only"
		mirrors    = "writes Services with the names of mirrors and global services only"
		noSelector = "without a selector only"
		ownSlices  = "writes EndpointSlices with its own labels managed-by only"
		ofMirrors  = onlyOwnNames
		singles    = "single addresses only"
		remotes    = "writes IPPools only outside of the own cluster's subnets, of at most a /8 (IPv6: /16)"
		reserves   = "writes IPReservations only that are called semaphore-tunnel-addresses-0 to -f"
		changes    = "changes and deletes"
		inside     = "no endpoint in the own cluster's subnets but for its pods"
		chooses    = "chooses no cluster IP but one that the apiserver may assign"
	)
	var long []string
	for i := range 1000 {
		long = append(long, fmt.Sprintf("10.2.%d.%d", i/250, i%250+1))
	}
	// Use the maximum size (sets.maxSize).
	nets, nets6 := make([]any, 30_000), make([]any, 30_000)
	for i := range nets {
		nets[i] = fmt.Sprintf("10.2.%d.%d/32", i/250, i%250+1)
		nets6[i] = fmt.Sprintf("2001:db80:1111:2222:3333:4444:5555:%x/128", 0x1000+i)
	}
	calico := func(resource string) dynamic.NamespaceableResourceInterface {
		return dynamicStolen.Resource(schema.GroupVersionResource{Group: "crd.projectcalico.org", Version: "v1",
			Resource: resource})
	}
	ofCalico := func(kind, name string, labels map[string]any, spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "crd.projectcalico.org/v1", "kind": kind, "metadata": map[string]any{"name": name, "labels": labels},
			"spec": spec,
		}}
	}
	ourLabels := map[string]any{"app.kubernetes.io/managed-by": "semaphore-broker", "managed-by": "semaphore-policy"}
	set := func(labels map[string]any, nets ...any) func() error {
		return func() error {
			_, err := calico("globalnetworksets").Create(ctx, ofCalico("GlobalNetworkSet", "c2-shop-try", labels,
				map[string]any{"nets": nets}), dry)
			return err
		}
	}
	pool := func(name string, spec map[string]any) func() error {
		return func() error {
			_, err := calico("ippools").Create(ctx, ofCalico("IPPool", name, ourLabels, spec), dry)
			return err
		}
	}
	reservation := func(name string, cidrs ...any) func() error {
		return func() error {
			_, err := calico("ipreservations").Create(ctx, ofCalico("IPReservation", name, ourLabels,
				map[string]any{"reservedCIDRs": cidrs}), dry)
			return err
		}
	}
	adminDynamic := dynamic.NewForConfigOrDie(s.admin)
	foreign := func(resource string) dynamic.ResourceInterface {
		return adminDynamic.Resource(schema.GroupVersionResource{Group: "crd.projectcalico.org", Version: "v1",
			Resource: resource})
	}
	ownPool := map[string]any{"cidr": "10.2.0.0/16", "disabled": true, "disableBGPExport": true}
	ownNets := map[string]any{"nets": []any{"10.2.0.1/32"}}
	// As the Calico API server stores the broker's sets, and one as semaphore-policy left it.
	veiled := ofCalico("GlobalNetworkSet", "c2-shop-veiled", nil, ownNets)
	veiled.SetAnnotations(map[string]string{"projectcalico.org/metadata": `{"labels":{` +
		`"app.kubernetes.io/managed-by":"semaphore-broker","managed-by":"semaphore-policy"}}`})
	for _, object := range []*unstructured.Unstructured{veiled,
		ofCalico("GlobalNetworkSet", "c2-shop-theirs", map[string]any{"managed-by": "semaphore-policy"}, ownNets),
		ofCalico("GlobalNetworkSet", "foreign", nil, map[string]any{"nets": []any{"192.0.2.0/24"}}),
		ofCalico("IPPool", "default-ipv4-ippool", nil, map[string]any{"cidr": "10.1.0.0/16"})} {
		resource := strings.ToLower(object.GetKind()) + "s"
		if _, err := foreign(resource).Create(ctx, object, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
			must(t, err)
		}
	}
	take := func(name string) func() error {
		return func() error {
			have := kubetest.GetObject(t, foreign("globalnetworksets"), name)
			have.SetLabels(map[string]string{"app.kubernetes.io/managed-by": "semaphore-broker",
				"managed-by": "semaphore-policy"})
			have.SetAnnotations(nil)
			_, err := calico("globalnetworksets").Update(ctx, have, dryUpdate)
			return err
		}
	}
	inPod, pod := s.podToken(t, ns, account, account+"-0")
	own := strings.TrimSuffix(account, "semaphore-broker") + "semaphore-broker-federation"
	lead := func(by kubernetes.Interface, change ...func(*discoveryv1.EndpointSlice)) func() error {
		return tries(t, by.DiscoveryV1().EndpointSlices(ns), leaderSlice(own, pod, change...))
	}
	const leads = "leads its own Services semaphore-broker and semaphore-broker-federation only to the pod that writes"

	// The objects that a broker creates for the remote with the longest name that has dots.
	dotted := strings.Repeat("c", 55) + ".example"
	mirrorOfDotted := naming.Mirror(naming.ClusterLabel(dotted), "shop", "echo")
	ofDotted := map[string]any{naming.LabelSourceCluster: dotted, "semaphore.uw.systems/cluster": dotted}
	maps.Copy(ofDotted, ourLabels)

	attempts := []attempt{
		// Writes of the broker.
		{"a mirror, dotted name", tries(t, services, mirrorService(mirrorOfDotted, func(s *corev1.Service) {
			s.Labels[naming.LabelSourceCluster], s.Labels[naming.LabelMirrorPrefixSync] = dotted, naming.ClusterLabel(dotted)
			s.Annotations[naming.AnnotationGlobalClusters] = "c1," + dotted
		})), nil},
		{"a slice, dotted name", tries(t, slicesOf, mirrorSlice(naming.Slice(mirrorOfDotted, dotted, 1_000_000),
			func(s *discoveryv1.EndpointSlice) {
				s.Labels[naming.LabelSourceCluster], s.Labels[discoveryv1.LabelServiceName] = dotted, mirrorOfDotted
			})), nil},
		{"a set, dotted name", func() error {
			name := naming.SetPart(naming.SetApart(dotted, strings.Repeat("n", 63), strings.Repeat("s", 63)), 1_000_000)
			_, err := calico("globalnetworksets").Create(ctx, ofCalico("GlobalNetworkSet", name, ofDotted,
				map[string]any{"nets": []any{"10.2.0.1/32"}}), dry)
			return err
		}, nil},
		{"a pool, dotted name", pool(naming.Pool(dotted, "2001:db8:1111:2222:3333:4444:5555:0/112"),
			map[string]any{"cidr": "2001:db8:1111:2222:3333:4444:5555:0/112", "disabled": true, "disableBGPExport": true}), nil},
		{"a mirror", func() error {
			_, err := services.Create(ctx, mirrorService("c2-shop-73736d-echo"), metav1.CreateOptions{})
			return err
		}, nil},
		{"a headless one", create(spec(func(s *corev1.ServiceSpec) { s.ClusterIP = corev1.ClusterIPNone })), nil},
		{"a global one", create(func(s *corev1.Service) {
			s.Labels["global-svc"] = "true"
			s.Annotations["global-svc-clusters"], s.Annotations["service.kubernetes.io/topology-mode"] = "c1,c2", "auto"
		}), nil},
		{"other ports", update("c2-shop-73736d-echo",
			spec(func(s *corev1.ServiceSpec) { s.Ports = []corev1.ServicePort{{Port: 81, Protocol: "TCP"}} })), nil},
		{"somebody else's annotation stays", func() error {
			_, err := admin.CoreV1().Services(ns).Patch(ctx, "c2-shop-73736d-echo", types.MergePatchType,
				[]byte(`{"metadata":{"annotations":{"example.org/x":"y"},"finalizers":["example.org/f"]}}`), metav1.PatchOptions{})
			must(t, err)
			return update("c2-shop-73736d-echo", spec(func(s *corev1.ServiceSpec) { s.SessionAffinity = "ClientIP" }))()
		}, nil},
		// Somebody has made it a load balancer, and the cluster has given it an address.
		{"a mirror is one again", func() error {
			all := admin.CoreV1().Services(ns)
			was := kubetest.Get(t, all, "c2-shop-73736d-echo")
			have := was.DeepCopy()
			have.Spec.Type, have.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, "Local"
			have.Spec.LoadBalancerIP, have.Spec.LoadBalancerSourceRanges = "192.0.2.1", []string{"10.0.0.0/8"}
			have.Spec.LoadBalancerClass = ptr.To("example.org/class")
			have = kubetest.Update(t, all, have)
			have.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
			kubetest.UpdateStatus(t, all, have)
			again := func(s *corev1.Service) {
				s.Spec.Type, s.Spec.Ports = corev1.ServiceTypeClusterIP, was.Spec.Ports
				s.Spec.LoadBalancerIP, s.Spec.LoadBalancerSourceRanges = "", nil
			}
			defer func() {
				have := kubetest.Get(t, all, "c2-shop-73736d-echo")
				again(have)
				kubetest.Update(t, all, have)
			}()
			return update("c2-shop-73736d-echo", again)()
		}, nil},
		{"a slice", func() error {
			_, err := slicesOf.Create(ctx, mirrorSlice("c2-shop-73736d-echo-c2-0"), metav1.CreateOptions{})
			return err
		}, nil},
		{"a slice without endpoints", createSlice(func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil }), nil},
		{"a slice of IPv6", createSlice(addresses("fd00:2::5"),
			func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeIPv6 }), nil},
		{"a slice with pods of the own cluster", createSlice(addresses("10.1.3.4")), nil},
		{"a slice as large as can be", createSlice(addresses(long...)), nil},
		{"the ConfigMap of drains", configMap(metav1.ObjectMeta{Name: "semaphore-drains"}), nil},
		{"the ConfigMap of remotes", configMap(metav1.ObjectMeta{Name: "semaphore-broker-remotes"}), nil},
		{"a set", set(ourLabels, "10.2.0.1/32", "fd00:2::1/128"), nil},
		{"a set as large as can be", set(ourLabels, nets...), nil},
		{"a set of IPv6 as large as can be", set(ourLabels, nets6...), nil},
		{"a set of its own that the Calico API server stored", take("c2-shop-veiled"), nil},
		{"a set of semaphore-policy", take("c2-shop-theirs"), nil},
		{"a mirror that comes back with its address",
			create(spec(func(s *corev1.ServiceSpec) { s.ClusterIP = "10.96.200.9" })), nil},
		{"a mirror gets an address of the other family", second(nil), nil},
		{"it gets one that the apiserver may assign", second([]string{"fd00:96::809"}), nil},
		{"a disabled pool", pool("semaphore-c2-10-2-0-0-16", with(with(ownPool, "ipipMode", "Never"), "vxlanMode",
			"Never")), nil},
		{"a reservation", reservation("semaphore-tunnel-addresses-f", "10.1.3.4/32", "fd00:1::4/128"), nil},

		// Services.
		{"no label", create(func(s *corev1.Service) { s.Labels = nil }), says{labelled}},
		{"another name", tries(t, services, mirrorService("kubernetes")), says{mirrors}},
		{"external IPs", create(spec(func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"8.8.8.8"} })), says{kind}},
		{"external IPs later", update("c2-shop-73736d-echo",
			spec(func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"10.101.0.1"} })), says{kind}},
		{"NodePort", create(spec(func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort })), says{kind}},
		{"NodePort later", update("c2-shop-73736d-echo",
			spec(func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort })), says{kind}},
		{"LoadBalancer", create(spec(func(s *corev1.ServiceSpec) {
			s.Type, s.LoadBalancerIP = corev1.ServiceTypeLoadBalancer,
				"192.0.2.1"
		})), says{kind}},
		{"an address of a load balancer", create(spec(func(s *corev1.ServiceSpec) { s.LoadBalancerIP = "192.0.2.1" })),
			says{kind}},
		{"ExternalName", create(spec(func(s *corev1.ServiceSpec) {
			s.Type, s.ExternalName, s.Ports = corev1.ServiceTypeExternalName, "evil.example.org", nil
		})), says{kind}},
		{"a selector", create(spec(func(s *corev1.ServiceSpec) { s.Selector = map[string]string{"app": "db"} })),
			says{noSelector}},
		{"a selector later", update("c2-shop-73736d-echo",
			spec(func(s *corev1.ServiceSpec) { s.Selector = map[string]string{"app": "db"} })), says{noSelector}},
		{"an annotation that other controllers act on",
			create(func(s *corev1.Service) { s.Annotations["external-dns.alpha.kubernetes.io/hostname"] = "x.org" }),
			says{"may not set the annotations external-dns.alpha.kubernetes.io/hostname"}},
		{"a finalizer", create(func(s *corev1.Service) { s.Finalizers = []string{"example.org/f"} }),
			says{"may not change finalizers"}},
		{"an owner", create(func(s *corev1.Service) {
			s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "u"}}
		}), says{"may not change finalizers and owners"}},
		{"somebody else's Service",
			update("victim", spec(func(s *corev1.ServiceSpec) { s.Selector = map[string]string{"app": "evil"} })),
			says{changes, labelled, mirrors, noSelector}},
		{"somebody else's Service made its own", update("victim", func(s *corev1.Service) {
			*s = *mirrorService("victim", func(m *corev1.Service) {
				m.ResourceVersion, m.UID, m.Spec.ClusterIP = s.ResourceVersion, s.UID, s.Spec.ClusterIP
			})
		}), says{changes, mirrors}},
		{"the selector of its own Service", update(strings.TrimSuffix(account, "broker")+"broker",
			spec(func(s *corev1.ServiceSpec) { s.Selector = map[string]string{"app": "evil"} })),
			says{changes, labelled, mirrors, noSelector}},
		{"a Service of semaphore-service-mirror without the right to", func() error {
			kubetest.Create(t, admin.CoreV1().Services(ns), mirrorService("c2-shop-73736d-old",
				func(s *corev1.Service) { s.Labels = map[string]string{"mirrored-svc": "true"} }))
			t.Cleanup(func() {
				admin.CoreV1().Services(ns).Delete(context.Background(), "c2-shop-73736d-old", metav1.DeleteOptions{})
			})
			return update("c2-shop-73736d-old",
				func(s *corev1.Service) { s.Labels["app.kubernetes.io/managed-by"] = "semaphore-broker" })()
		}, says{changes}},
		{"somebody else's Service is deleted", func() error { return services.Delete(ctx, "victim", dryDelete) },
			says{changes}},
		{"the status", func() error {
			_, err := services.Patch(ctx, "c2-shop-73736d-echo", types.MergePatchType,
				[]byte(`{"status":{"conditions":[{"type":"LoadBalancerPortsError","status":"True","reason":"x",`+
					`"lastTransitionTime":"2026-01-01T00:00:00Z","message":""}]}}`), metav1.PatchOptions{}, "status")
			return err
		}, says{"may not change the status"}},
		{"an address that people choose",
			create(spec(func(s *corev1.ServiceSpec) { s.ClusterIP = "10.96.0.53" })), says{chooses}},
		{"an address of the other family that people choose", second([]string{"fd00:96::53"}), says{chooses}},
		{"such an address, and nothing that says who chose it", second([]string{"fd00:96::53"}, untracked), says{chooses}},
		{"an address that people choose, by the list", create(spec(func(s *corev1.ServiceSpec) {
			s.ClusterIP, s.ClusterIPs = "10.96.0.53", []string{"10.96.0.53"}
		})), says{chooses}},

		// EndpointSlices.
		{"the own apiserver", createSlice(addresses("10.2.0.5", "192.0.2.9")), says{inside}},
		{"a cluster IP", createSlice(addresses("10.101.0.1")), says{inside}},
		{"a slice without label",
			createSlice(func(s *discoveryv1.EndpointSlice) { delete(s.Labels, "app.kubernetes.io/managed-by") }),
			says{ownSlices}},
		{"a slice of Kubernetes' controller", createSlice(func(s *discoveryv1.EndpointSlice) {
			s.Labels[discoveryv1.LabelManagedBy] = "endpointslice-controller.k8s.io"
		}), says{ownSlices}},
		{"a slice of another Service",
			createSlice(func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = "victim" }),
			says{ofMirrors}},
		{"a slice of names", createSlice(addresses("evil.example.org"),
			func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN }), says{"with IP addresses only"}},
		{"a node", createSlice(func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].NodeName = ptr.To("n1") }),
			says{"no node, pod or zone"}},
		{"a pod", createSlice(func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: "p"}
		}), says{"no node, pod or zone"}},
		{"a zone", createSlice(func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Zone = ptr.To("a") }),
			says{"no node, pod or zone"}},
		{"somebody else's slice", func() error {
			_, err := slicesOf.Patch(ctx, "victim-x", types.MergePatchType,
				[]byte(`{"endpoints":[{"addresses":["10.2.0.66"]}]}`), metav1.PatchOptions{})
			return err
		}, says{changes, ownSlices, ofMirrors}},
		{"somebody else's slice is deleted", func() error { return slicesOf.Delete(ctx, "victim-x", dryDelete) },
			says{changes}},

		// The broker's own Services.
		{"the leader leads calls to itself", func() error {
			_, err := inPod.DiscoveryV1().EndpointSlices(ns).Create(ctx, leaderSlice(own, pod), metav1.CreateOptions{})
			t.Cleanup(func() {
				admin.DiscoveryV1().EndpointSlices(ns).Delete(context.Background(), own+"-leader-ipv4", metav1.DeleteOptions{})
			})
			return err
		}, nil},
		{"it takes its address away", func() error {
			have, err := inPod.DiscoveryV1().EndpointSlices(ns).Get(ctx, own+"-leader-ipv4", metav1.GetOptions{})
			if err != nil {
				return err
			}
			have.Endpoints = nil
			_, err = inPod.DiscoveryV1().EndpointSlices(ns).Update(ctx, have, dryUpdate)
			return err
		}, nil},
		{"a token that is of no pod leads calls", lead(stolen), says{leads}},
		{"calls to another pod", lead(inPod, func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].TargetRef.UID = "another" }),
			says{leads}},
		{"calls to no pod", lead(inPod, func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].TargetRef = nil }), says{leads}},
		{"calls to two pods", lead(inPod,
			func(s *discoveryv1.EndpointSlice) { s.Endpoints = append(s.Endpoints, s.Endpoints[0]) }), says{leads}},
		{"calls to the kubelet", lead(inPod, func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = ptr.To[int32](10250) }),
			says{leads}},
		{"calls to another Service", lead(inPod, func(s *discoveryv1.EndpointSlice) {
			s.Name, s.Labels[discoveryv1.LabelServiceName] = "victim-leader-ipv4", "victim"
		}), says{leads}},
		{"a second slice for calls", lead(inPod, func(s *discoveryv1.EndpointSlice) { s.Name += "-2" }), says{leads}},
		{"a mirror's slice becomes the leader's", func() error {
			have := kubetest.Get(t, admin.DiscoveryV1().EndpointSlices(ns), "c2-shop-73736d-echo-c2-0")
			have.Labels = leaderSlice(own, pod).Labels
			_, err := inPod.DiscoveryV1().EndpointSlices(ns).Update(ctx, have, dryUpdate)
			return err
		}, says{"turns no EndpointSlice of a mirror into one of its leader", leads}},

		// Endpoints.
		{"Endpoints of a mirror", func() error {
			_, err := endpointsOf.Create(ctx, mirrorEndpoints("c2-shop-73736d-try",
				map[string]any{"app.kubernetes.io/managed-by": "semaphore-broker", "mirrored-svc": "true"}), dry)
			return err
		}, says{"writes no Endpoints"}},
		{"somebody else's Endpoints", func() error {
			_, err := endpointsOf.Patch(ctx, "victim", types.MergePatchType, []byte(`{"subsets":[]}`), metav1.PatchOptions{})
			return err
		}, says{"writes no Endpoints", "deletes Endpoints of semaphore-service-mirror only"}},
		{"somebody else's Endpoints are deleted", func() error { return endpointsOf.Delete(ctx, "victim", dryDelete) },
			says{"deletes Endpoints of semaphore-service-mirror only"}},
		{"Endpoints of semaphore-service-mirror are deleted, without the right to take over",
			func() error { return endpointsOf.Delete(ctx, "c2-shop-73736d-theirs", dryDelete) },
			says{"deletes Endpoints of semaphore-service-mirror only"}},

		// ConfigMaps and Leases.
		{"another ConfigMap", configMap(metav1.ObjectMeta{Name: "semaphore-bundles-2"}),
			says{onlyNamed + "semaphore-bundles-2"}},
		{"the exporter's ConfigMap", configMap(metav1.ObjectMeta{Name: "semaphore-remotes"}),
			says{onlyNamed + "semaphore-remotes"}},
		{"a ConfigMap without a name", configMap(metav1.ObjectMeta{GenerateName: "semaphore-"}),
			says{"may make only the configmaps"}},
		{"another Lease", tries(t, stolen.CoordinationV1().Leases(ns),
			&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "other"}}),
			says{"may make only the leases that it may update, not other"}},

		// Calico's types.
		{"a set of everything", set(ourLabels, "0.0.0.0/0"), says{singles}},
		{"a set of an IPv6 network", set(ourLabels, "10.2.0.1/32", "fd00::/32"), says{singles}},
		{"a set of an IPv6 network behind an address", set(ourLabels, "fd00:2::1/128", "fd00:2:3::/32"), says{singles}},
		{"a set without label", set(nil, "10.2.0.1/32"),
			says{"writes objects of Calico with the label app.kubernetes.io/managed-by=semaphore-broker only"}},
		{"a set with a label by which somebody else's policy selects",
			set(with(ourLabels, "role", "trusted-admins"), "10.2.0.1/32"), says{"may not set the labels role"}},
		{"a set with such a label of another domain",
			set(with(ourLabels, "example.org/name", "trusted"), "10.2.0.1/32"),
			says{"may not set the labels example.org/name"}},
		{"a set that says that another tool manages it",
			set(with(ourLabels, "managed-by", "admins"), "10.2.0.1/32"), says{"may not set the labels managed-by"}},
		{"a set with such a label as the Calico API server stores it", func() error {
			o := ofCalico("GlobalNetworkSet", "c2-shop-try", ourLabels, map[string]any{"nets": []any{"10.2.0.1/32"}})
			o.SetAnnotations(map[string]string{"projectcalico.org/metadata": `{"labels":{"role":"trusted-admins"}}`})
			_, err := calico("globalnetworksets").Create(ctx, o, dry)
			return err
		}, says{"may not set the labels in the annotation"}},
		{"a pool with a label that is nobody's", func() error {
			_, err := calico("ippools").Create(ctx, ofCalico("IPPool", "semaphore-c2-x", with(ourLabels, "zone", "a"),
				map[string]any{"cidr": "10.2.0.0/16", "disabled": true, "disableBGPExport": true}), dry)
			return err
		}, says{"may not set the labels zone"}},
		{"somebody else's set", take("foreign"), says{changes, singles}},
		{"somebody else's set is deleted",
			func() error { return calico("globalnetworksets").Delete(ctx, "foreign", dryDelete) }, says{changes}},
		{"a set of semaphore-policy is deleted",
			func() error { return calico("globalnetworksets").Delete(ctx, "c2-shop-theirs", dryDelete) }, says{changes}},
		{"the cluster's pool is deleted",
			func() error { return calico("ippools").Delete(ctx, "default-ipv4-ippool", dryDelete) }, says{changes}},
		{"a pool that gives out addresses",
			pool("semaphore-c2-x", map[string]any{"cidr": "10.2.0.0/16", "disableBGPExport": true}),
			says{"disabled and not exported by BGP"}},
		{"a pool that BGP exports", pool("semaphore-c2-x", map[string]any{"cidr": "10.2.0.0/16", "disabled": true}),
			says{"disabled and not exported by BGP"}},
		{"a pool of another name",
			pool("default-ipv6-ippool", map[string]any{"cidr": "10.2.0.0/16", "disabled": true, "disableBGPExport": true}),
			says{"disabled and not exported by BGP"}},
		{"a pool of half the Internet", pool("semaphore-x1", with(ownPool, "cidr", "0.0.0.0/1")), says{remotes}},
		{"a pool of half of IPv6", pool("semaphore-x1", with(ownPool, "cidr", "::/1")), says{remotes}},
		{"a pool around the own pods", pool("semaphore-x1", with(ownPool, "cidr", "10.0.0.0/8")), says{remotes}},
		{"a pool of the own pods", pool("semaphore-x1", with(ownPool, "cidr", "10.1.4.0/24")), says{remotes}},
		{"a pool with IP-in-IP", pool("semaphore-x1", with(ownPool, "ipipMode", "Always")),
			says{"without NAT and encapsulation"}},
		{"a pool with VXLAN", pool("semaphore-x1", with(ownPool, "vxlanMode", "CrossSubnet")),
			says{"without NAT and encapsulation"}},
		{"a reservation of the pod network", reservation("semaphore-tunnel-addresses-0", "10.1.0.0/16"), says{singles}},
		{"a reservation of an IPv6 network", reservation("semaphore-tunnel-addresses-0", "fd00:1::/32"), says{singles}},
		{"a reservation of another name", reservation("semaphore-tunnel-addresses-zz", "10.1.3.4/32"), says{reserves}},
	}
	const lost = "c2-shop-73736d-lost"
	label := map[string]any{"app.kubernetes.io/managed-by": "semaphore-broker"}
	for _, c := range []struct {
		kind   schema.GroupVersionKind
		ns     string
		object runtime.Object
	}{
		{corev1.SchemeGroupVersion.WithKind("Service"), ns, mirrorService(lost)},
		{discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), ns, mirrorSlice(lost)},
		{kubetest.CalicoCRD.WithKind("GlobalNetworkSet"), "", ofCalico("GlobalNetworkSet", lost, label, ownNets)},
		{kubetest.CalicoCRD.WithKind("IPPool"), "", ofCalico("IPPool", "semaphore-c2-lost", label, ownPool)},
	} {
		attempts = append(attempts, s.unlabelled(t, dynamicStolen, c.kind, c.ns, c.object)...)
	}
	subnets := subnetsOf(t, admin, ns)
	subnets.Data["staticServiceIPs"] = "10.96.0.0/24,fd00:96::/120" // of the apiserver's subnets
	subnets = kubetest.Update(t, admin.CoreV1().ConfigMaps(ns), subnets)
	s.settled(t)
	refusedFor(t, "the key staticServiceIPs", chooses,
		create(spec(func(s *corev1.ServiceSpec) { s.ClusterIP = "10.96.0.54" })))
	s.checkAll(t, attempts)
	bind(t, admin, rbacv1.PolicyRule{APIGroups: []string{"semaphore.uw.io"}, Resources: []string{"writes"},
		Verbs: []string{"adopt"}}, "system:serviceaccount:"+ns+":"+account)
	eventually(t, "the end of the Endpoints of semaphore-service-mirror, with the right to take over", func() error {
		return endpointsOf.Delete(ctx, "c2-shop-73736d-theirs", dryDelete)
	})
	// The policies refuse if an object of theirs is missing.
	for _, key := range []string{"localSubnets", "staticServiceIPs"} {
		delete(subnets.Data, key)
	}
	subnets = kubetest.Update(t, admin.CoreV1().ConfigMaps(ns), subnets)
	const none = "has no key localSubnets"
	refusedFor(t, "no key", none, createSlice())
	refusedFor(t, "no key", chooses, create(spec(func(s *corev1.ServiceSpec) { s.ClusterIP = "10.96.200.9" })))
	for _, change := range []func(*corev1.Service){func(*corev1.Service) {}, untracked} {
		refusedFor(t, "no key", chooses, second([]string{"fd00:96::809"}, change))
	}
	for what, do := range map[string]func() error{"a mirror": create(), "its other family": second(nil)} {
		if err := do(); err != nil {
			t.Errorf("without staticServiceIPs %s is refused: %v", what, err)
		}
	}
	subnets.Data["localSubnets"] = "10.1.0.0/16, the nodes"
	subnets = kubetest.Update(t, admin.CoreV1().ConfigMaps(ns), subnets)
	refusedFor(t, "a key that has no subnets", "resulted in error", createSlice())
	must(t, admin.CoreV1().ConfigMaps(ns).Delete(ctx, subnets.Name, metav1.DeleteOptions{}))
	const noParameters = "no params found"
	refusedFor(t, "no ConfigMap", noParameters, createSlice())
	refusedFor(t, "no ConfigMap", noParameters, set(ourLabels, "10.2.0.1/32"))
	// Its own object can be deleted, and administrators are not confined.
	if _, err := admin.CoreV1().Services(ns).Patch(ctx, "c2-shop-73736d-echo", types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null},"spec":{"externalIPs":["192.0.2.77"]}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("an administrator is confined: %v", err)
	}
	testkit.NoError(t, services.Delete(ctx, "c2-shop-73736d-echo", metav1.DeleteOptions{}))
	testkit.NoError(t, slicesOf.Delete(ctx, "c2-shop-73736d-echo-c2-0", metav1.DeleteOptions{}))
}
