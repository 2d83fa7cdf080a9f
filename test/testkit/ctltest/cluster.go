package ctltest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// K3sCorefile is the Corefile of K3s (manifests/coredns.yaml).
const K3sCorefile = `.:53 {
    errors
    health
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
      pods insecure
      fallthrough in-addr.arpa ip6.arpa
    }
    hosts /etc/coredns/NodeHosts {
      ttl 60
      reload 15s
      fallthrough
    }
    prometheus :9153
    forward . /etc/resolv.conf
    cache 30
    loop
    reload
    loadbalance
    import /etc/coredns/custom/*.override
}
import /etc/coredns/custom/*.server
`

// runPods acts as kubelets: pods run and are ready immediately, and those of Jobs succeed. They have no node, so that
// the apiserver removes them as soon as they are deleted.
func runPods(ctx context.Context, admin kubernetes.Interface) error {
	api := admin.CoreV1().Pods("")
	pods, err := api.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range pods.Items {
		runPod(ctx, admin, &pods.Items[i])
	}
	since := metav1.ListOptions{ResourceVersion: pods.ResourceVersion, TimeoutSeconds: new(int64(1))}
	changes, err := api.Watch(ctx, since)
	if err != nil {
		return err
	}
	defer changes.Stop()
	for change := range changes.ResultChan() {
		if p, ok := change.Object.(*corev1.Pod); ok && change.Type != watch.Deleted {
			runPod(ctx, admin, p)
		}
	}
	return nil
}

// runPod has a pod run that does not yet, unless its node is away. A change that fails is retried.
func runPod(ctx context.Context, admin kubernetes.Interface, p *corev1.Pod) {
	if p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodPending && p.Status.Phase != "" {
		return
	}
	if node, err := admin.CoreV1().Nodes().Get(ctx, nodeOfAgent(p), metav1.GetOptions{}); err == nil && isAway(node) {
		_ = admin.CoreV1().Pods(p.Namespace).Bind(ctx, &corev1.Binding{ObjectMeta: p.ObjectMeta,
			Target: corev1.ObjectReference{Kind: "Node", Name: node.Name}}, metav1.CreateOptions{}) // as a scheduler does
		return
	}
	p.Status.Phase = corev1.PodRunning
	if p.Spec.RestartPolicy == corev1.RestartPolicyOnFailure {
		p.Status.Phase = corev1.PodSucceeded
	}
	for _, c := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady, corev1.PodInitialized} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.Now()})
	}
	_, _ = admin.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
}

// nodeOfAgent returns the node for which a DaemonSet's controller made a pod; "none" for another pod.
func nodeOfAgent(p *corev1.Pod) string {
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil &&
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, field := range term.MatchFields {
				return field.Values[0]
			}
		}
	}
	return "none"
}

// isAway reports whether a node has the taint of a node that is not ready. It is there from the node's creation on.
func isAway(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeNotReady })
}

// Controllers are the controllers of Kubernetes that run what is installed, and remove what is deleted.
var Controllers = []string{"deployment-controller", "replicaset-controller", "daemonset-controller", "job-controller",
	"garbage-collector-controller", "serviceaccount-controller"}

// EmptyCluster starts a real apiserver with one node and Kubernetes' controllers, and returns a kubeconfig with it as
// context name.
func EmptyCluster(t *testing.T, name, pods, ip string, calico bool) (kubeconfig string, cfg *rest.Config) {
	t.Helper()
	cfg = kubetest.Start(t)
	if calico {
		kubetest.InstallCalico(t, cfg, kubetest.CalicoCRD, "globalnetworksets", "ippools", "blockaffinities", "ipamconfigs",
			"felixconfigurations", "networksets", "ipreservations")
		pools := dynamic.NewForConfigOrDie(cfg).Resource(kubetest.CalicoCRD.WithResource("ippools"))
		kubetest.CreateObject(t, pools, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": kubetest.CalicoCRD.String(), "kind": "IPPool", "metadata": map[string]any{"name": "default"},
			"spec": map[string]any{"cidr": pods, "ipipMode": "Never", "vxlanMode": "Never", "natOutgoing": true,
				"nodeSelector": "all()"}}})
	}
	admin := kubernetes.NewForConfigOrDie(cfg)
	node := kubetest.Create(t, admin.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Spec: corev1.NodeSpec{PodCIDR: pods, PodCIDRs: []string{pods}}})
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}}
	node.Status.NodeInfo.KernelVersion, node.Status.NodeInfo.OSImage = "6.12.1", "Debian GNU/Linux 13"
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	kubetest.UpdateStatus(t, admin.CoreV1().Nodes(), node)
	kubetest.StartControllers(t, cfg, Controllers...)
	kubetest.Repeat(t, func(ctx context.Context) error { return runPods(ctx, admin) })
	kubetest.EndNamespaces(t, cfg)
	file := kubetest.Kubeconfig(t, cfg)
	raw := clientcmd.GetConfigFromFileOrDie(file)
	raw.Contexts[name] = raw.Contexts[raw.CurrentContext]
	raw.CurrentContext = name
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(*raw, kubeconfig))
	return kubeconfig, cfg
}

// WithoutListing returns the configuration of an operator who may do everything except list one type, and what removes
// the operator's rights.
func WithoutListing(t *testing.T, cfg *rest.Config, of schema.GroupResource) (limited *rest.Config, end func()) {
	t.Helper()
	admin := kubernetes.NewForConfigOrDie(cfg)
	roles, bindings := admin.RbacV1().ClusterRoles(), admin.RbacV1().ClusterRoleBindings()
	_, lists, err := admin.Discovery().ServerGroupsAndResources()
	must(t, err)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "without-listing-" + of.Resource}}
	for _, list := range lists {
		gv := testkit.Value(schema.ParseGroupVersion(list.GroupVersion))(t)
		for _, r := range list.APIResources {
			rule := rbacv1.PolicyRule{APIGroups: []string{gv.Group}, Resources: []string{r.Name}, Verbs: []string{"*"}}
			if of == gv.WithResource(r.Name).GroupResource() {
				rule.Verbs = []string{"get", "create", "patch", "update", "delete"}
			}
			role.Rules = append(role.Rules, rule)
		}
	}
	kubetest.Create(t, roles, role)
	kubetest.Create(t, bindings, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "operator"}}})
	limited = rest.CopyConfig(cfg)
	limited.Impersonate = rest.ImpersonationConfig{UserName: "operator", Groups: []string{"system:authenticated"}}
	return limited, func() {
		must(t, bindings.Delete(t.Context(), role.Name, metav1.DeleteOptions{}))
		must(t, roles.Delete(t.Context(), role.Name, metav1.DeleteOptions{}))
	}
}

// Everything lists each object that could have been written, except those that the controllers write.
func Everything(t *testing.T, cfg *rest.Config) string {
	t.Helper()
	dyn, admin := dynamic.NewForConfigOrDie(cfg), kubernetes.NewForConfigOrDie(cfg)
	_, lists, err := admin.Discovery().ServerGroupsAndResources()
	must(t, err)
	var out []string
	for _, list := range lists {
		for _, r := range list.APIResources {
			if strings.Contains(r.Name, "/") || !strings.Contains(strings.Join(r.Verbs, " "), "delete") ||
				slices.Contains([]string{"events", "leases", "endpoints", "apiservices"}, r.Name) {
				continue
			}
			gvk := strings.Split(list.GroupVersion, "/")
			gv := kubetest.CalicoCRD
			if gv.Group, gv.Version = "", gvk[0]; len(gvk) == 2 {
				gv.Group, gv.Version = gvk[0], gvk[1]
			}
			all, err := dyn.Resource(gv.WithResource(r.Name)).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatalf("%s %s: %v", gv, r.Name, err)
			}
			for _, o := range all.Items {
				annotations := o.GetAnnotations()
				delete(annotations, "semaphore.uw.io/refreshed") // when a kubelet was to look at a pod is nothing that is left
				out = append(out, fmt.Sprintln(list.GroupVersion, r.Name, o.GetNamespace(), o.GetName(), annotations))
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, "")
}

// Patch merges a patch into an object, or its status.
func Patch[T any](t *testing.T, client interface {
	Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (T, error)
}, name, patch string, of ...string) {
	t.Helper()
	testkit.Value(client.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, of...))(t)
}

// Durations differ between two runs.
var Durations = regexp.MustCompile(`(\d+m)?\d+(\.\d+)?m?s\b`)

// AwaitDefault waits until the controllers, and the apiserver itself, have created the objects of a new cluster.
func AwaitDefault(t *testing.T, admin kubernetes.Interface) error {
	t.Helper()
	testkit.Eventually(t, 3*time.Minute, "namespaces have their ServiceAccounts", func() error {
		for _, n := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
			if _, err := admin.CoreV1().ServiceAccounts(n).Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
				return err
			}
		}
		for _, n := range []string{"extension-apiserver-authentication",
			"kube-apiserver-legacy-service-account-token-tracking"} {
			if _, err := admin.CoreV1().ConfigMaps("kube-system").Get(t.Context(), n, metav1.GetOptions{}); err != nil {
				return err
			}
		}
		_, err := admin.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
		return err
	})
	return nil
}

// PodSubnets are the pod subnets of the clusters of linkable.
var PodSubnets = map[string]string{"c1": "10.1.0.0/16", "c2": "10.2.0.0/16"}

// Linkable returns two clusters with everything that link needs except keys.
func Linkable(t *testing.T) (kubeconfig string, admins map[string]kubernetes.Interface,
	remotes map[string]dynamic.ResourceInterface, ctl func(want int, args string) string) {
	t.Helper()
	kubeconfig, admins = TwoClusters(t)
	ctl = func(want int, args string) string {
		t.Helper()
		out, code, err := Run(t, strings.Fields(args+" --kubeconfig "+kubeconfig)...)
		if code != want {
			t.Fatalf("%s: exit code %d, %v\n%s", args, code, err, out)
		}
		return regexp.MustCompile(`:\d{5}\b`).ReplaceAllString(out, ":PORT")
	}
	remotes = map[string]dynamic.ResourceInterface{}
	for _, name := range []string{"c1", "c2"} {
		cfg := testkit.Value(clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&clientcmd.ClientConfigLoadingRules{
			ExplicitPath: kubeconfig,
		}, &clientcmd.ConfigOverrides{CurrentContext: name}).
			ClientConfig())(t)
		kubetest.InstallRemoteClusters(t, cfg)
		remotes[name] = dynamic.NewForConfigOrDie(cfg).Resource(v1alpha1.RemoteClusters)
		node := kubetest.Create(t, admins[name].CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"},
			Spec: corev1.NodeSpec{PodCIDR: PodSubnets[name], PodCIDRs: []string{PodSubnets[name]}}})
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.18." + name[1:] + ".7"}}
		kubetest.UpdateStatus(t, admins[name].CoreV1().Nodes(), node)
		kubetest.Create(t, admins[name].CoreV1().Services("semaphore"), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "semaphore-broker-federation"},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "federation", Port: 8443}}},
		})
	}
	return kubeconfig, admins, remotes, ctl
}

// TwoClusters starts two real apiservers with the namespace of the parts, and returns a kubeconfig with the contexts c1
// and c2.
func TwoClusters(t *testing.T) (kubeconfig string, admins map[string]kubernetes.Interface) {
	t.Helper()
	admins = map[string]kubernetes.Interface{}
	merged := clientcmd.GetConfigFromFileOrDie(os.DevNull)
	for _, name := range []string{"c1", "c2"} {
		cfg := kubetest.Start(t)
		admins[name] = kubernetes.NewForConfigOrDie(cfg)
		kubetest.Namespace(t, admins[name], "semaphore")
		one := testkit.Value(clientcmd.LoadFromFile(kubetest.Kubeconfig(t, cfg)))(t)
		current := one.Contexts[one.CurrentContext]
		merged.Clusters[name], merged.AuthInfos[name] = one.Clusters[current.Cluster], one.AuthInfos[current.AuthInfo]
		current.Cluster, current.AuthInfo = name, name
		merged.Contexts[name] = current
	}
	merged.CurrentContext = "c1"
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(*merged, kubeconfig))
	return kubeconfig, admins
}
