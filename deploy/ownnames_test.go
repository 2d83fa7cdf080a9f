package deploy_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// remotePodSubnets are the keys of the ConfigMap semaphore-subnets for the remotes of these tests.
var remotePodSubnets = map[string]string{"remotePodSubnets.c2": "10.2.0.0/16, fd00:2::/64",
	"remotePodSubnets.c3": "10.3.0.0/16", "remotePodSubnets.eu-1.example.com": "10.4.0.0/16"}

// testOwnNameWrites attacks with a stolen broker token where features/own-names lets it write EndpointSlices beside
// Services of users: alone, and with features/mcs. It can write the pods of a remote, and nothing else (R17).
func testOwnNameWrites(t *testing.T, s *server) {
	for _, features := range []string{"DEPLOY/features/own-names", "DEPLOY/features/mcs, DEPLOY/features/own-names"} {
		t.Run(strings.ReplaceAll(features, "DEPLOY/features/", ""), func(t *testing.T) {
			s.applyImports(t, "resources: [DEPLOY/example/c1]\ncomponents: ["+features+"]\n")
			s.attackOwnNames(t, "semaphore", strings.Contains(features, "mcs"))
		})
	}
}

// attackOwnNames makes all attempts in an installation. withMCS says that features/mcs is part of it, whose policies
// refuse, too.
func (s *server) attackOwnNames(t *testing.T, brokers string, withMCS bool) {
	t.Helper()
	admin := s.client("")
	subnets := subnetsOf(t, admin, brokers)
	for key, value := range remotePodSubnets {
		subnets.Data[key] = value
	}
	subnets = kubetest.Update(t, admin.CoreV1().ConfigMaps(brokers), subnets)
	a := newOwnNames(t, s, brokers, withMCS)
	lost := s.unlabelled(t, dynamic.NewForConfigOrDie(s.tokenConfig(t, brokers, "semaphore-broker")),
		discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), "shop",
		a.slice(func(s *discoveryv1.EndpointSlice) { s.Name = "gl-shop-73736d-web-c2-9" }))
	s.settled(t)
	s.checkAll(t, slices.Concat(a.allowed(), a.addresses(), a.places(t), a.others(t, s), a.contents(), lost))
	// A subnet that cannot be read refuses the writes for its remote, and no other's.
	subnets.Data["remotePodSubnets.c2"] = "10.2.0.0/16, the pods"
	kubetest.Update(t, admin.CoreV1().ConfigMaps(brokers), subnets)
	refusedFor(t, "a key that has no subnets", "resulted in error", a.create("shop"))
	if err := a.create("shop", ofRemote("c3", "10.3.0.5"))(); err != nil {
		t.Errorf("because of the key of c2, a slice of c3 is refused: %v", err)
	}
}

// ownNames makes attempts with a stolen token.
type ownNames struct {
	ctx             context.Context
	brokers         string
	mcs             bool
	admin, stolen   kubernetes.Interface
	theirs, beside  *discoveryv1.EndpointSlice
	ours            *discoveryv1.EndpointSlice
	ownerOfShopsWeb metav1.OwnerReference
}

// newOwnNames makes what the attacks aim at: a Service web in the namespace shop with a slice of Kubernetes, and a
// slice of the broker beside it.
func newOwnNames(t *testing.T, s *server, brokers string, withMCS bool) *ownNames {
	t.Helper()
	a := &ownNames{ctx: t.Context(), brokers: brokers, mcs: withMCS, admin: s.client(""),
		stolen: kubernetes.NewForConfigOrDie(s.tokenConfig(t, brokers, "semaphore-broker"))}
	for _, name := range []string{"shop", "kube-system", "calico-system", "tigera-operator", "quiet"} {
		kubetest.Namespace(t, a.admin, name)
	}
	s.kubectl(t, "label", "namespace", "quiet", "semaphore.uw.io/own-names=false", "--overwrite")
	web := kubetest.Temporary(t, a.admin.CoreV1().Services("shop"), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}})
	a.ownerOfShopsWeb = metav1.OwnerReference{APIVersion: "v1", Kind: "Service", Name: "web", UID: web.UID}
	slicesOf := a.admin.DiscoveryV1().EndpointSlices("shop")
	a.theirs = kubetest.Temporary(t, slicesOf, mirrorSlice("web-abcde", func(s *discoveryv1.EndpointSlice) {
		s.Labels = map[string]string{discoveryv1.LabelServiceName: "web",
			discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}
	}, addresses("10.1.0.5")))
	a.ours = kubetest.Temporary(t, slicesOf, a.slice())
	a.beside = kubetest.Temporary(t, slicesOf, mirrorSlice("beside", besideImport))
	return a
}

// slice returns a slice that the broker writes under the own name of shop/web, with changes.
func (a *ownNames) slice(change ...func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	return mirrorSlice("gl-shop-73736d-web-c2-0", append([]func(*discoveryv1.EndpointSlice){
		func(s *discoveryv1.EndpointSlice) {
			delete(s.Labels, "mirrored-svc")
			s.Labels[discoveryv1.LabelServiceName], s.Labels[naming.LabelOwnName] = "web", naming.OwnNameFailover
			s.OwnerReferences = []metav1.OwnerReference{a.ownerOfShopsWeb}
		}}, change...)...)
}

// create creates such a slice under another name.
func (a *ownNames) create(ns string, change ...func(*discoveryv1.EndpointSlice)) func() error {
	return func() error {
		s := a.slice(append([]func(*discoveryv1.EndpointSlice){func(s *discoveryv1.EndpointSlice) {
			s.Name = "gl-shop-73736d-web-c2-1"
		}}, change...)...)
		_, err := a.stolen.DiscoveryV1().EndpointSlices(ns).Create(a.ctx, s, dry)
		return err
	}
}

// update writes over a slice in the namespace shop.
func (a *ownNames) update(over *discoveryv1.EndpointSlice, s *discoveryv1.EndpointSlice) func() error {
	return func() error {
		s.Name, s.Namespace = over.Name, over.Namespace
		_, err := a.stolen.DiscoveryV1().EndpointSlices("shop").Update(a.ctx, s, dryUpdate)
		return err
	}
}

// also returns more reasons where features/mcs is installed.
func (a *ownNames) also(reasons says, more ...string) says {
	if a.mcs {
		return slices.Concat(reasons, more)
	}
	return reasons
}

func ofRemote(cluster string, all ...string) func(*discoveryv1.EndpointSlice) {
	return func(s *discoveryv1.EndpointSlice) {
		s.Labels[naming.LabelSourceCluster] = cluster
		addresses(all...)(s)
	}
}

func labelled(key, value string) func(*discoveryv1.EndpointSlice) {
	return func(s *discoveryv1.EndpointSlice) {
		if s.Labels[key] = value; value == "" {
			delete(s.Labels, key)
		}
	}
}

func endpoint(change func(*discoveryv1.Endpoint)) func(*discoveryv1.EndpointSlice) {
	return func(s *discoveryv1.EndpointSlice) { change(&s.Endpoints[0]) }
}

// besideImport makes a slice one beside a ServiceImport.
func besideImport(s *discoveryv1.EndpointSlice) {
	for _, key := range []string{discoveryv1.LabelServiceName, naming.LabelOwnName} {
		delete(s.Labels, key)
	}
	s.Labels[mcsv1beta1.LabelServiceName], s.Labels[corev1.IsHeadlessService], s.OwnerReferences = "web", "", nil
}

// The policies' verdicts on slices under own names.
const (
	onlyOwnNames   = "ServiceImports and, with features/own-names, own names only"
	onlyMirrors    = "EndpointSlices of mirrors only where it may create Services"
	onlyServices   = "EndpointSlices of Services only where it may create Services"
	notThere       = "no EndpointSlices under own names into the namespaces of the cluster itself, into its own"
	notImported    = "writes no EndpointSlices into the namespaces of the cluster itself"
	nameOfGlobal   = "with the name of the global service's, and for no mirror"
	notTheirs      = "changes and deletes EndpointSlices with the label"
	turnsNone      = "turns no EndpointSlice of a mirror into one under an own name, or back"
	onlyItsService = "names no owner of an EndpointSlice but its Service"
	noApiserver    = "no endpoint in the own cluster's subnets but for its pods"
)

func onlyIn(remote string) string {
	return "writes only endpoints in the pod subnets of " + remote + ", the key"
}
func noKey(remote string) string { return "has no key remotePodSubnets." + remote + " with" }

// allowed are writes of the broker.
func (a *ownNames) allowed() []attempt {
	many := make([]string, 1000) // an EndpointSlice has no more
	for i := range many {
		many[i] = fmt.Sprintf("10.2.%d.%d", i/250, i%250+1)
	}
	return []attempt{
		{"a slice of c2", a.create("shop"), nil},
		{"a slice of c2 that mixes", a.create("shop", labelled(naming.LabelOwnName, naming.OwnNameAll)), nil},
		{"a slice of IPv6", a.create("shop", addresses("fd00:2::5"),
			func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeIPv6 }), nil},
		{"a slice of a remote with dots", a.create("shop", ofRemote("eu-1.example.com", "10.4.0.5")), nil},
		{"a slice of a headless Service", a.create("shop", func(s *discoveryv1.EndpointSlice) {
			s.Labels[corev1.IsHeadlessService], s.Endpoints[0].Hostname = "", ptr.To("web-0")
		}), nil},
		{"a slice without an owner yet",
			a.create("shop", func(s *discoveryv1.EndpointSlice) { s.OwnerReferences = nil }), nil},
		{"a slice as large as can be", a.create("shop", addresses(many...)), nil},
		{"other endpoints", a.update(a.ours, a.slice(addresses("10.2.0.6"))), nil},
		{"the Service was made again", a.update(a.ours,
			a.slice(func(s *discoveryv1.EndpointSlice) { s.OwnerReferences[0].UID = "another" })), nil},
		{"its slice is deleted", func() error {
			return a.stolen.DiscoveryV1().EndpointSlices("shop").Delete(a.ctx, a.ours.Name, dryDelete)
		}, nil},
	}
}

// addresses are those of no pod of the remote.
func (a *ownNames) addresses() []attempt {
	return []attempt{
		{"an address outside of the remote", a.create("shop", addresses("203.0.113.7")), says{onlyIn("c2")}},
		{"one address of several outside of it", a.create("shop", addresses("10.2.0.5", "203.0.113.7")),
			says{onlyIn("c2")}},
		{"a pod of the own cluster", a.create("shop", addresses("10.1.0.9")), says{onlyIn("c2")}},
		{"the own apiserver", a.create("shop", addresses("192.0.2.9")), says{onlyIn("c2"), noApiserver}},
		{"a pod of another remote", a.create("shop", addresses("10.3.0.5")), says{onlyIn("c2")}},
		{"other endpoints outside of the remote", a.update(a.ours, a.slice(addresses("203.0.113.7"))),
			says{onlyIn("c2")}},
		{"a remote that nobody knows", a.create("shop", ofRemote("c9", "10.2.0.5")), says{noKey("c9"), onlyIn("c9")}},
		{"no remote", a.create("shop", labelled(naming.LabelSourceCluster, "")), says{noKey(""), onlyIn("")}},
		{"a name for an address", a.create("shop", addresses("evil.example.org"),
			func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN }),
			says{"writes endpoints with IP addresses only", onlyIn("c2")}},
	}
}

// places are Services that are no user's, and slices that are not under an own name.
func (a *ownNames) places(t *testing.T) []attempt {
	t.Helper()
	kubernetesOf := func(s *discoveryv1.EndpointSlice) {
		s.Labels[discoveryv1.LabelServiceName], s.OwnerReferences = "kubernetes", nil
	}
	beside := a.create("shop", besideImport)
	ofImport := attempt{"a slice beside a ServiceImport", beside, nil}
	if !a.mcs {
		ofImport = attempt{"a slice beside a ServiceImport, without features/mcs", beside, says{onlyMirrors}}
	}
	all := []attempt{ofImport,
		{"the apiserver's Service", a.create("default", kubernetesOf), says{"the Service default/kubernetes"}},
		{"a Service of that name elsewhere", a.create("shop", kubernetesOf), nil},
		{"a namespace that says false", a.create("quiet"), says{notThere}},
		{"its own namespace", a.create(a.brokers), says{notThere}},
		{"no label", a.create("shop", labelled(naming.LabelOwnName, ""),
			func(s *discoveryv1.EndpointSlice) { s.OwnerReferences = nil }),
			a.also(says{onlyOwnNames, onlyMirrors}, onlyServices)},
		{"a mirror", a.create("shop", func(s *discoveryv1.EndpointSlice) {
			s.Labels[discoveryv1.LabelServiceName], s.OwnerReferences = "c2-shop-73736d-web", nil
		}), says{nameOfGlobal}},
		{"a user's Service with the name of a mirror", a.create("shop", labelled(naming.LabelOwnName, ""),
			func(s *discoveryv1.EndpointSlice) {
				s.Labels[discoveryv1.LabelServiceName], s.OwnerReferences = "c2-shop-73736d-web", nil
			}), a.also(says{onlyMirrors}, onlyServices)},
		{"a name that is none of a global service", a.create("shop",
			func(s *discoveryv1.EndpointSlice) { s.Name = "web-fghij" }), says{nameOfGlobal}},
	}
	for _, ns := range []string{"kube-system", "calico-system", "tigera-operator"} {
		all = append(all, attempt{"namespace " + ns, a.create(ns), a.also(says{notThere}, notImported)})
	}
	return all
}

// others are slices of other writers, and of the broker for another purpose.
func (a *ownNames) others(t *testing.T, s *server) []attempt {
	t.Helper()
	inPod, pod := s.podToken(t, a.brokers, "semaphore-broker", "semaphore-broker-1")
	asLeader := func(ns string, change ...func(*discoveryv1.EndpointSlice)) func() error {
		return tries(t, inPod.DiscoveryV1().EndpointSlices(ns), leaderSlice("x-semaphore-broker", pod, change...))
	}
	remove := func(ns, name string) func() error {
		return func() error { return a.stolen.DiscoveryV1().EndpointSlices(ns).Delete(a.ctx, name, dryDelete) }
	}
	toMirror := a.slice(labelled(naming.LabelOwnName, ""), func(s *discoveryv1.EndpointSlice) {
		s.Labels[discoveryv1.LabelServiceName] = "c2-shop-73736d-web"
	})
	backToImport := says{turnsNone, onlyMirrors}
	if a.mcs {
		backToImport = says{turnsNone}
	}
	return []attempt{
		{"Kubernetes' slice leads elsewhere", a.update(a.theirs, a.slice(func(s *discoveryv1.EndpointSlice) {
			s.Name = a.theirs.Name
		})), says{notTheirs, turnsNone, nameOfGlobal}},
		{"Kubernetes' slice keeps its labels", a.update(a.theirs, func() *discoveryv1.EndpointSlice {
			own := a.theirs.DeepCopy()
			addresses("10.2.0.5")(own)
			return own
		}()), a.also(says{"with its own labels managed-by only", notTheirs, onlyOwnNames, onlyMirrors}, onlyServices)},
		{"Kubernetes' slice is deleted", remove("shop", a.theirs.Name), says{notTheirs}},
		{"as Kubernetes' controller", a.create("shop",
			labelled(discoveryv1.LabelManagedBy, "endpointslice-controller.k8s.io")),
			says{"with its own labels managed-by only"}},
		{"a slice beside an import comes under the own name", a.update(a.beside, a.slice()),
			says{turnsNone, nameOfGlobal}},
		{"and back", a.update(a.ours, a.slice(besideImport,
			func(s *discoveryv1.EndpointSlice) { s.OwnerReferences = []metav1.OwnerReference{a.ownerOfShopsWeb} })),
			backToImport},
		{"a slice becomes a mirror's", a.update(a.ours, toMirror), a.also(says{turnsNone, onlyMirrors}, onlyServices)},
		{"calls to the leader", asLeader("shop"), a.also(says{onlyMirrors}, onlyServices)},
		{"calls to the leader under an own name", asLeader("shop", labelled(naming.LabelOwnName, naming.OwnNameAll)),
			says{nameOfGlobal, noKey(""), onlyIn("")}},
	}
}

// contents are fields of a slice by which it would be more than addresses.
func (a *ownNames) contents() []attempt {
	owner := func(change func(*metav1.OwnerReference)) func() error {
		return a.create("shop", func(s *discoveryv1.EndpointSlice) { change(&s.OwnerReferences[0]) })
	}
	const names = "names no node, pod or zone in an endpoint"
	return []attempt{
		{"a node", a.create("shop", endpoint(func(e *discoveryv1.Endpoint) { e.NodeName = ptr.To("n1") })),
			says{names}},
		{"a pod", a.create("shop", endpoint(func(e *discoveryv1.Endpoint) {
			e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: "web-0"}
		})), says{names}},
		{"a zone", a.create("shop", endpoint(func(e *discoveryv1.Endpoint) { e.Zone = ptr.To("a") })), says{names}},
		{"a Pod as the owner", owner(func(o *metav1.OwnerReference) { o.Kind = "Pod" }), says{onlyItsService}},
		{"another Service as the owner", owner(func(o *metav1.OwnerReference) { o.Name = "api" }),
			says{onlyItsService}},
		{"a Service of another API as the owner",
			owner(func(o *metav1.OwnerReference) { o.APIVersion = "serving.knative.dev/v1" }), says{onlyItsService}},
		{"a controller", owner(func(o *metav1.OwnerReference) { o.Controller = ptr.To(true) }), says{onlyItsService}},
		{"an owner that waits for it", owner(func(o *metav1.OwnerReference) { o.BlockOwnerDeletion = ptr.To(true) }),
			says{onlyItsService}},
		{"a finalizer", a.create("shop",
			func(s *discoveryv1.EndpointSlice) { s.Finalizers = []string{"example.org/x"} }),
			says{"may not change finalizers and owners"}},
		{"an annotation that others act on", a.create("shop", func(s *discoveryv1.EndpointSlice) {
			s.Annotations = map[string]string{"example.org/x": "y"}
		}), says{"may not set the annotations example.org/x"}},
	}
}

// bindingsOf returns the bindings of admission policies whose names have a part.
func bindingsOf(objects []runtime.Object, part string) (out []runtime.Object) {
	for _, o := range objects {
		b, ok := o.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding)
		if ok && strings.Contains(b.Name, part) {
			out = append(out, o)
		}
	}
	return out
}
