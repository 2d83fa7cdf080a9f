package deploy_test

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/internal/mcs"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// testImportWrites attacks with a stolen broker token where features/mcs gives it permissions in all namespaces. It can
// write its ServiceImports and their EndpointSlices, and nothing else (R29).
func testImportWrites(t *testing.T, s *server) {
	s.applyImports(t, "resources: [DEPLOY/example/c1]\ncomponents: [DEPLOY/features/mcs]\n")
	attempts, _ := importAttempts(t, s, "semaphore")
	s.settled(t)
	s.checkAll(t, attempts)
}

// TestImportWritesElsewhere: the same attacks fail where semaphore is in another namespace, without agents, and what it
// may write in its own namespace it may not in the one of the manifests. The apiserver is the test's own, as the
// parameters of policies are not followed any more once other tests have deleted the last policy with some.
func TestImportWritesElsewhere(t *testing.T) {
	const ns = "federation"
	s := startServer(t)
	s.applyImports(t, "namespace: "+ns+"\n"+withoutAgents)
	attempts, stolen := importAttempts(t, s, ns)
	kubetest.Namespace(t, s.client(""), "semaphore")
	mirror := func(ns string, change ...func(*discoveryv1.EndpointSlice)) func() error {
		return tries(t, stolen.DiscoveryV1().EndpointSlices(ns), mirrorSlice("try", change...))
	}
	attempts = append(attempts,
		attempt{"a slice of a mirror", mirror(ns), nil},
		attempt{"a slice of a mirror with the own apiserver", mirror(ns, addresses("192.0.2.9")),
			says{"no endpoint in the own cluster's subnets but for its pods"}},
		attempt{"a slice of a mirror in the namespace of the manifests", mirror("semaphore"),
			says{"only where it may create Services"}},
		attempt{"subnets of its own", tries(t, stolen.CoreV1().ConfigMaps(ns),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "semaphore-subnets-2",
				Labels: map[string]string{"semaphore.uw.io/subnets": "true"}}}), says{onlyNamed + "semaphore-subnets-2"}})
	s.settled(t)
	s.checkAll(t, attempts)
	_, err := stolen.CoreV1().ConfigMaps(ns).Update(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "semaphore-subnets"}}, metav1.UpdateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("other subnets of the own cluster: %v", err)
	}
	dir := overlay(t, "namespace: "+ns+"\n"+withOwnNames(withoutAgents))
	s.apply(t, dir)
	s.warn(t, bindingsOf(build(t, dir), "own-name"))
	t.Run("own names", func(t *testing.T) { s.attackOwnNames(t, ns, true) })
}

// applyImports installs an overlay with features/mcs and the CRDs of the API, and makes its policies warn too.
func (s *server) applyImports(t *testing.T, text string) {
	t.Helper()
	testkit.Value(mcs.ApplyDefinitions(t.Context(), dynamic.NewForConfigOrDie(s.admin)))(t)
	s.applied(t, text)
}

// besideEcho makes a slice one beside the ServiceImport echo.
func besideEcho(s *discoveryv1.EndpointSlice) {
	delete(s.Labels, discoveryv1.LabelServiceName)
	s.Labels[mcsv1beta1.LabelServiceName], s.Labels[corev1.IsHeadlessService] = "echo", ""
}

// importAttempts returns what a stolen broker token tries in a namespace, and the client with the token.
func importAttempts(t *testing.T, s *server, brokers string) ([]attempt, kubernetes.Interface) {
	t.Helper()
	ctx := t.Context()
	admin := s.client("")
	kubetest.Namespace(t, admin, "shop")
	kubetest.Namespace(t, admin, "kube-system")
	cfg := s.tokenConfig(t, brokers, "semaphore-broker")
	stolen := kubernetes.NewForConfigOrDie(cfg)
	importsOf := func(cfg *rest.Config) mcs.Resource[*mcsv1beta1.ServiceImport] {
		return testkit.Value(mcs.New(cfg, "test"))(t).Imports()
	}
	imports, adminImports := importsOf(cfg), importsOf(s.admin)
	serviceImport := func(ns, name string, change ...func(*mcsv1beta1.ServiceImport)) *mcsv1beta1.ServiceImport {
		i := &mcsv1beta1.ServiceImport{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name,
				Labels: map[string]string{"app.kubernetes.io/managed-by": "semaphore-broker"}},
			Spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.ClusterSetIP, Ports: []mcsv1beta1.ServicePort{{Port: 80}}},
		}
		for _, c := range change {
			c(i)
		}
		return i
	}
	var theirs *mcsv1beta1.ServiceImport
	eventually(t, "the API", func() error {
		var err error
		theirs, err = adminImports.Create(ctx, serviceImport("shop", "theirs",
			func(i *mcsv1beta1.ServiceImport) { i.Labels = nil }))
		return err
	})
	t.Cleanup(func() { adminImports.Delete(context.Background(), "shop", "theirs", metav1.DeleteOptions{}) })
	create := func(ns string, change ...func(*mcsv1beta1.ServiceImport)) func() error {
		return func() error {
			made, err := imports.Create(ctx, serviceImport(ns, "try", change...))
			if err == nil {
				err = imports.Delete(ctx, made.Namespace, made.Name, metav1.DeleteOptions{})
			}
			return err
		}
	}
	slice := func(ns string, change ...func(*discoveryv1.EndpointSlice)) func() error {
		return tries(t, stolen.DiscoveryV1().EndpointSlices(ns),
			mirrorSlice("try", append([]func(*discoveryv1.EndpointSlice){besideEcho}, change...)...))
	}
	inPod, pod := s.podToken(t, brokers, "semaphore-broker", "semaphore-broker-0")
	// A slice of Kubernetes' controller, where only features/mcs gives the broker rights.
	kubetest.Temporary(t, admin.DiscoveryV1().EndpointSlices("shop"), mirrorSlice("theirs",
		func(s *discoveryv1.EndpointSlice) {
			s.Labels = map[string]string{discoveryv1.LabelServiceName: "echo",
				discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}
		}))
	const headless = "of ServiceImports only that no Service has, with the label service.kubernetes.io/headless"
	attempts := []attempt{
		{"a ServiceImport", create("shop"), nil},
		{"one with the labels of its export", create("shop", func(i *mcsv1beta1.ServiceImport) {
			i.Labels["team"], i.Labels["app.kubernetes.io/name"] = "a", "echo"
		}), nil},
		{"a slice beside it", slice("shop"), nil},
		{"an import into kube-system", create("kube-system"), says{"imports nothing into the namespaces of the cluster"}},
		{"an import without its label", create("shop", func(i *mcsv1beta1.ServiceImport) { i.Labels = nil }),
			says{"with the label app.kubernetes.io/managed-by"}},
		{"somebody else's import", func() error {
			i := theirs.DeepCopy()
			i.Labels = map[string]string{"app.kubernetes.io/managed-by": "semaphore-broker"}
			_, err := imports.Update(ctx, i)
			return err
		}, says{"changes and deletes ServiceImports with the label"}},
		{"somebody else's import is deleted", func() error {
			return imports.Delete(ctx, "shop", "theirs", dryDelete)
		}, says{"changes and deletes ServiceImports with the label"}},
		{"an annotation that Kubernetes acts on", create("shop", func(i *mcsv1beta1.ServiceImport) {
			i.Annotations = map[string]string{"service.kubernetes.io/topology-mode": "Auto"}
		}), says{"may not set the labels and annotations service.kubernetes.io/topology-mode"}},
		{"a finalizer", create("shop", func(i *mcsv1beta1.ServiceImport) { i.Finalizers = []string{"example.org/x"} }),
			says{"may not change finalizers"}},
		{"an owner", create("shop", func(i *mcsv1beta1.ServiceImport) {
			i.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "u"}}
		}), says{"may not change finalizers and owners"}},
		{"the status of somebody else's import", func() error {
			i := theirs.DeepCopy()
			i.Status.Clusters = []mcsv1beta1.ClusterStatus{{Cluster: "c9"}}
			_, err := imports.UpdateStatus(ctx, i)
			return err
		}, says{"writes ServiceImports with the label", "changes and deletes ServiceImports with the label"}},
		{"somebody else's slice leads elsewhere", func() error {
			_, err := stolen.DiscoveryV1().EndpointSlices("shop").Update(ctx, mirrorSlice("theirs", besideEcho), dryUpdate)
			return err
		}, says{"changes and deletes EndpointSlices with the label"}},
		{"somebody else's slice is deleted", func() error {
			return stolen.DiscoveryV1().EndpointSlices("shop").Delete(ctx, "theirs", dryDelete)
		}, says{"changes and deletes EndpointSlices with the label"}},
		{"calls of another namespace's Service to the leader", tries(t, inPod.DiscoveryV1().EndpointSlices("shop"),
			leaderSlice("x-semaphore-broker", pod)), says{"only where it may create Services"}},
		{"a slice in kube-system", slice("kube-system"), says{"no EndpointSlices into the namespaces of the cluster itself"}},
		{"a slice of a local Service", slice("shop", func(s *discoveryv1.EndpointSlice) {
			s.Labels[discoveryv1.LabelServiceName] = "echo"
		}), says{onlyOwnNames, headless, onlyServices}},
		{"a slice under the own name of a local Service", slice("shop", func(s *discoveryv1.EndpointSlice) {
			s.Labels[discoveryv1.LabelServiceName], s.Labels[naming.LabelOwnName] = "echo", naming.OwnNameFailover
			delete(s.Labels, mcsv1beta1.LabelServiceName)
		}), says{"with features/own-names, own names only"}},
		{"a slice of an import with an owner", slice("shop", func(s *discoveryv1.EndpointSlice) {
			s.Labels[naming.LabelOwnName] = naming.OwnNameFailover
			s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "echo", UID: "u"}}
		}), says{"may not change finalizers and owners"}},
		{"a slice of an import and of a mirror", slice("shop", func(s *discoveryv1.EndpointSlice) {
			s.Labels[discoveryv1.LabelServiceName] = "c2-shop-73736d-echo"
		}), says{headless, "only where it may create Services"}},
		{"a slice of a user's Service with the name of a mirror", slice("shop", func(s *discoveryv1.EndpointSlice) {
			s.Labels[discoveryv1.LabelServiceName] = "c2-shop-73736d-echo"
			delete(s.Labels, mcsv1beta1.LabelServiceName)
			delete(s.Labels, corev1.IsHeadlessService)
		}), says{"only where it may create Services"}},
		{"a slice that kube-proxy watches", slice("shop", func(s *discoveryv1.EndpointSlice) {
			delete(s.Labels, corev1.IsHeadlessService)
		}), says{headless}},
		{"a slice of neither", slice("shop", func(s *discoveryv1.EndpointSlice) {
			delete(s.Labels, mcsv1beta1.LabelServiceName)
		}), says{onlyOwnNames}},
		{"a slice with the own apiserver", slice("shop", addresses("192.0.2.9")),
			says{"no endpoint in the own cluster's subnets but for its pods"}},
		{"a slice with a node", slice("shop", func(s *discoveryv1.EndpointSlice) {
			node := "n1"
			s.Endpoints[0].NodeName = &node
		}), says{"no node, pod or zone"}},
	}
	tools := []string{naming.LabelInstance}
	for _, domain := range naming.ToolDomains {
		tools = append(tools, "x."+domain+"/y")
	}
	for _, key := range tools {
		attempts = append(attempts, attempt{"the label " + key + " of a deployment tool",
			create("shop", func(i *mcsv1beta1.ServiceImport) { i.Labels[key] = "x" }),
			says{"may not set the labels and annotations " + key}})
	}
	lost := func(s *discoveryv1.EndpointSlice) { s.Name = "mcs-shop-73736d-lost" }
	return slices.Concat(attempts,
		s.unlabelled(t, dynamic.NewForConfigOrDie(cfg), mcsv1beta1.SchemeGroupVersion.WithKind("ServiceImport"), "shop",
			serviceImport("shop", "lost")),
		s.unlabelled(t, dynamic.NewForConfigOrDie(cfg), discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), "shop",
			mirrorSlice("", besideEcho, lost))), stolen
}
