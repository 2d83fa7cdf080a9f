package install

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/ctl/apply"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/naming"
	"github.com/kube-semaphore/semaphore/internal/remotes"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestInstall: one command and a kubeconfig install semaphore in an empty cluster as in the manifests. A second call
// changes nothing, and uninstall restores the earlier state.
func TestInstall(t *testing.T) {
	kubeconfig, cfg := ctltest.EmptyCluster(t, "c1", "10.1.0.0/16", "172.18.1.7", true)
	admin := kubernetes.NewForConfigOrDie(cfg)
	home := t.TempDir()
	t.Chdir(home)
	t.Setenv("HOME", home)
	t.Setenv("TMPDIR", home)
	ctl := func(want int, args string) string {
		t.Helper()
		out, code, err := ctltest.Run(t, strings.Fields(args+" --context c1 --kubeconfig "+kubeconfig)...)
		if code != want {
			t.Fatalf("%s: exit code %d, %v\n%s", args, code, err, out)
		}
		if err != nil {
			out += "error: " + err.Error() + "\n"
		}
		return ctltest.Durations.ReplaceAllString(regexp.MustCompile(`v1\.\d+\.\d+\S*`).ReplaceAllString(out, "v1.N"),
			"TIME")
	}
	must(t, ctltest.AwaitDefault(t, admin))
	const corefile = ".:53 {\n    kubernetes example.org in-addr.arpa {\n    }\n}\n"
	kubetest.Create(t, admin.CoreV1().ConfigMaps("kube-system"), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "coredns"}, Data: map[string]string{"Corefile": corefile}})
	names := func() string {
		t.Helper()
		c := kubetest.Get(t, admin.CoreV1().ConfigMaps("kube-system"), "coredns")
		return c.Data["Corefile"]
	}
	before := ctltest.Everything(t, cfg)
	if out := ctl(2, "install -n kube-system"); !strings.Contains(out, "NamespaceTaken") {
		t.Errorf("into a namespace of others:\n%s", out)
	}
	yaml := ctl(0, "install --dry-run=client -o yaml")
	for _, want := range []string{"kind: DaemonSet", "kind: CustomResourceDefinition", "cluster: c1"} {
		if !strings.Contains(yaml, want) {
			t.Errorf("--dry-run=client prints no %q", want)
		}
	}
	var asJSON struct{ Clusters []show.Planned }
	must(t, json.Unmarshal([]byte(ctl(0, "install --dry-run=client -o json")), &asJSON))
	if len(asJSON.Clusters) != 1 || asJSON.Clusters[0].Context != "c1" ||
		len(asJSON.Clusters[0].Objects) != strings.Count(yaml, "\napiVersion: ") {
		t.Errorf("-o json prints %d clusters, YAML has %d objects", len(asJSON.Clusters),
			strings.Count(yaml, "\napiVersion: "))
	}
	if after := ctltest.Everything(t, cfg); after != before {
		t.Error("--dry-run=client wrote something")
	}
	ctltest.Golden(t, "install", ctl(0, "install"))
	ctltest.Golden(t, "install-again", ctl(0, "install"))

	// The record of an installation is lost: nothing is decided again, unless one says what is wanted.
	records := admin.CoreV1().ConfigMaps("semaphore")
	record := kubetest.Get(t, records, apply.RecordName)
	must(t, records.Delete(t.Context(), record.Name, metav1.DeleteOptions{}))
	if out := ctl(2, "install"); !strings.Contains(out, "RecordLost") {
		t.Errorf("without the record: %s", out)
	}
	ctl(0, "install --features services --dry-run=client -o yaml")
	record.ResourceVersion = ""
	kubetest.Create(t, records, record)
	for _, name := range []string{"semaphore-broker", "semaphore-exporter"} {
		d := kubetest.Get(t, admin.AppsV1().Deployments("semaphore"), name)
		if d.Status.AvailableReplicas != 2 {
			t.Errorf("%s: %d replicas are available", name, d.Status.AvailableReplicas)
		}
	}
	ctltest.Golden(t, "install-other-name", ctl(2, "install --cluster c9"))
	ctltest.Golden(t, "install-feature-removed", ctl(2, "install --features services,policy"))
	rights := func() error {
		_, err := admin.RbacV1().ClusterRoles().Get(t.Context(), "semaphore-broker-networksets", metav1.GetOptions{})
		return err
	}
	// As link does it.
	const linked = `{"data":{"remotePodSubnets.c2":"10.2.0.0/16"}}`
	_, err := admin.CoreV1().ConfigMaps("semaphore").Patch(t.Context(), "semaphore-subnets", types.MergePatchType,
		[]byte(linked), metav1.PatchOptions{FieldManager: apply.FieldManager})
	must(t, err)
	ctltest.Golden(t, "install-component", ctl(0, "install --components networksets"))
	must(t, rights())
	subnets := kubetest.Get(t, admin.CoreV1().ConfigMaps("semaphore"), "semaphore-subnets").Data
	if subnets["remotePodSubnets.c2"] != "10.2.0.0/16" || subnets["localSubnets"] == "" || subnets["broker.yaml"] == "" {
		t.Errorf("after a repeated install semaphore-subnets has %v", subnets)
	}

	imports := func(name, want string) {
		t.Helper()
		c, err := admin.CoreV1().ConfigMaps("semaphore").List(t.Context(), metav1.ListOptions{})
		must(t, err)
		found := false
		for _, m := range c.Items {
			found = found || strings.HasPrefix(m.Name, name) && strings.Contains(m.Data["config.yaml"], want)
		}
		if !found {
			t.Errorf("no configuration of %s has %q", name, want)
		}
	}
	if out := ctl(0, "install --components mcs,own-names"); strings.Count(out, "created, as there is none") != 2 {
		t.Errorf("the definitions are not applied:\n%s", out)
	}
	for _, part := range []string{"semaphore-broker", "semaphore-exporter"} {
		imports(part, "mcs:\n  enabled: true")
	}
	imports("semaphore-broker", "ownNames: true")
	must(t, rights()) // the earlier wishes
	withoutOwnNames(t, admin, ctl)
	if err := rights(); !apierrors.IsNotFound(err) {
		t.Errorf("without the component its rights are there still: %v", err)
	}
	usesWhatIsServed(t, cfg, admin, ctl)

	ctltest.Golden(t, "install-dns", ctl(0, "install --dns"))
	if text := names(); !strings.HasPrefix(text, corefile) || !strings.Contains(text, "\ncluster.global {") ||
		!strings.Contains(text, `svc\.example\.org`) {
		t.Errorf("the Corefile is\n%s", text)
	}
	kubetest.CreateRemote(t, cfg, "c2", "{podSubnets: [10.2.0.0/16], servicePrefix: two}")
	ctltest.ServeType(t, cfg, rules, "PrometheusRule")
	ctl(0, "install --components alerts") // existing DNS blocks are updated
	if text := names(); !strings.Contains(text, "\ncluster.c2 {") || !strings.Contains(text, "two-{2}-73736d-{1}") {
		t.Errorf("the Corefile is\n%s", text)
	}

	ctltest.Patch(t, admin.CoreV1().Nodes(), "n1",
		`{"metadata":{"annotations":{"c2.wireguard.semaphore.uw.io/pubKey":"x","other":"stays"}}}`)
	ctltest.Golden(t, "uninstall", ctl(0, "uninstall"))
	if _, err := admin.AppsV1().Deployments("semaphore").Get(t.Context(), "semaphore-broker",
		metav1.GetOptions{}); err != nil {
		t.Errorf("without --yes it was removed: %v", err)
	}
	for _, of := range []schema.GroupVersionResource{podMonitors, rules} { // uninstall needs no type of others
		removeDefinition(t, cfg, of.GroupResource().String())
	}
	ctltest.Golden(t, "uninstall-yes", ctl(0, "uninstall --yes"))
	ctltest.Patch(t, admin.CoreV1().Nodes(), "n1", `{"metadata":{"annotations":{"other":null}}}`)
	// The definitions of the Multi-Cluster Services API, and the users' ServiceExports, outlive the component and the
	// parts, and one policy with its binding keeps the apiserver following ConfigMaps.
	after, outlive := strings.Split(ctltest.Everything(t, cfg), "\n"), 0
	after = slices.DeleteFunc(after, func(line string) bool {
		is := strings.HasPrefix(line, "apiextensions.k8s.io/v1 customresourcedefinitions ") &&
			strings.Contains(line, ".multicluster.x-k8s.io ") ||
			strings.HasPrefix(line, "admissionregistration.k8s.io/v1 validatingadmissionpolic") &&
				strings.Contains(line, " semaphore-slice-addresses ")
		if is {
			outlive++
		}
		return is
	})
	if d := cmp.Diff(strings.Split(before, "\n"), after); d != "" || outlive != 4 {
		t.Errorf("uninstall leaves something, or took too much; %d objects outlive it:\n%s", outlive, d)
	}
	if text := names(); text != corefile {
		t.Errorf("uninstall leaves of the Corefile\n%q", text)
	}
	ctltest.Golden(t, "uninstall-again", ctl(0, "uninstall"))
	entries, err := os.ReadDir(home)
	must(t, err)
	for _, e := range entries {
		t.Errorf("%s was written on this machine", e.Name())
	}
	encryptionLater(t, cfg, ctl)
}

// TestInstallRefuses: install writes nothing where it would take over another installation, end what works, or stop
// half way, and says what to do.
func TestInstallRefuses(t *testing.T) {
	kubeconfig, cfg := ctltest.EmptyCluster(t, "c1", "10.1.0.0/16", "172.18.1.7", true)
	admin, dyn := kubernetes.NewForConfigOrDie(cfg), dynamic.NewForConfigOrDie(cfg)
	must(t, ctltest.AwaitDefault(t, admin))
	ctl := func(want int, args, says string) {
		t.Helper()
		out, code, err := ctltest.Run(t, strings.Fields(args+" --context c1 --kubeconfig "+kubeconfig)...)
		if out += fmt.Sprintln("error:", err); code != want || !strings.Contains(out, says) {
			t.Fatalf("%s: exit code %d, want %d and %q\n%s", args, code, want, says, out)
		}
	}
	written := func() (out string) { // what install writes, without status
		t.Helper()
		for _, of := range []schema.GroupVersionResource{fleet.NamespacesGVR, fleet.ConfigMapsGVR, fleet.SecretsGVR,
			fleet.DaemonSetsGVR, fleet.DeploymentsGVR,
			apiextensions.SchemeGroupVersion.WithResource("customresourcedefinitions"),
			rbacv1.SchemeGroupVersion.WithResource("clusterroles"),
			rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings")} {
			for _, o := range testkit.Value(dyn.Resource(of).List(t.Context(), metav1.ListOptions{}))(t).Items {
				version := o.GetResourceVersion()
				if g := o.GetGeneration(); g > 0 {
					version = fmt.Sprint("generation ", g)
				}
				out += fmt.Sprintln(of.Resource, o.GetNamespace(), o.GetName(), version)
			}
		}
		return out
	}
	refuses := func(want int, args, says string) {
		t.Helper()
		before := written()
		ctl(want, args, says)
		if d := cmp.Diff(strings.Split(before, "\n"), strings.Split(written(), "\n")); d != "" {
			t.Errorf("%s was refused, and wrote:\n%s", args, d)
		}
	}
	uninstallsWhatIsHalfThere(t, admin, ctl)
	refusesImages(t, admin)
	ctl(2, "install --image r.example/semaphore:v3", "Deployment semaphore/semaphore-broker: ") // the first
	if left := written(); strings.Contains(left, "secrets semaphore") || strings.Contains(left, "daemonsets semaphore") {
		t.Errorf("a first install that a policy refuses leaves\n%s", left)
	}
	ctl(0, "uninstall --yes", "c1: removed")
	secrets := admin.CoreV1().Secrets("semaphore")
	namespaced(t, admin)
	kubetest.Create(t, secrets, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "semaphore-broker-tls"}})
	refuses(2, "install", "the cluster's authority is elsewhere")
	refuses(0, "install --dry-run=client -o yaml", "kind: DaemonSet") // to apply by files, with the keys from elsewhere
	must(t, secrets.Delete(t.Context(), "semaphore-broker-tls", metav1.DeleteOptions{}))

	ctl(0, "install --features encryption,policy", "all parts are ready")
	refuses(2, "install --components alerts", "the cluster does not serve this kind")
	direct := kubeconfig
	kubeconfig = withoutDryRuns(t, direct, cfg)
	refuses(1, "install", "nothing was written: ")
	kubeconfig = direct
	refuses(2, "install -n mesh", "OtherInstallation  c1: namespace semaphore: ")
	refuses(1, "install --components mcs", `--components: "mcs" imports Services: it needs the feature services`)
	refuses(1, "install --components dns", `--components: "dns"`)

	// A remote's nodes are beside the own ones, and a new node is on the other side of them.
	kubetest.CreateRemote(t, cfg, "c2", "{podSubnets: [10.2.0.0/16], nodeSubnets: [172.18.2.0/24]}")
	kubetest.CreateRemote(t, cfg, "c3", "{podSubnets: [10.3.0.0/16], nodeSubnets: [172.18.0.0/16]}") // more than guessed
	kubetest.CreateRemote(t, cfg, "c4", "{podSubnets: [10.4.0.0/16], nodeSubnets: [172.18.2.0/25]}")
	kubetest.CreateRemote(t, cfg, "gone", "{podSubnets: [10.1.0.0/17], nodeSubnets: [172.18.2.0/24]}")
	inEffect(t, cfg, "c2", "c3", "c4", "gone")
	kubetest.CreateRemote(t, cfg, "bad", "{podSubnets: [10.1.0.0/16], nodeSubnets: [172.18.2.0/24]}") // never in effect

	objects := dyn.Resource(v1alpha1.RemoteClusters)
	ctltest.Patch(t, objects, "c4", `{"spec":{"podSubnets":["10.1.0.0/16"]}}`) // which is not accepted
	must(t, objects.Delete(t.Context(), "gone", metav1.DeleteOptions{}))
	ctl(0, "install", " unchanged")
	refuses(2, "install --pod-subnets 10.0.0.0/14", "SubnetsOverlap  c1: RemoteCluster c2: it would no longer be ")
	n2 := kubetest.Create(t, admin.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"},
		Spec: corev1.NodeSpec{PodCIDRs: []string{"10.1.3.0/24"}, PodCIDR: "10.1.3.0/24"}})
	n2.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.18.3.9"}}
	kubetest.UpdateStatus(t, admin.CoreV1().Nodes(), n2)
	lost := func(args, says string) { // the same without the record
		t.Helper()
		records := admin.CoreV1().ConfigMaps("semaphore")
		record := kubetest.Get(t, records, apply.RecordName)
		must(t, records.Delete(t.Context(), record.Name, metav1.DeleteOptions{}))
		refuses(2, "install --features encryption,policy "+args, says)
		record.ResourceVersion = ""
		kubetest.Create(t, records, record)
	}
	for _, remote := range []string{"c2", "c3", "c4"} {
		refuses(2, "install", "NodesInside  c1: RemoteCluster "+remote+": ")
		lost("", "NodesInside  c1: RemoteCluster "+remote+": ")
	}
	const alone = "--node-subnets 172.18.1.7/32,172.18.3.9/32"
	refuses(2, "install", alone)
	refuses(0, "install --dry-run=client -o yaml "+alone, "172.18.3.9/32")
	must(t, admin.CoreV1().Nodes().Delete(t.Context(), "n2", metav1.DeleteOptions{}))

	// Somebody has another limit, which the Deployment has last of all that is applied.
	limit := `{"spec":{"template":{"spec":{"containers":[{"name":"broker","resources":{"limits":{"memory":"8Gi"}}}]}}}}`
	testkit.Value(admin.AppsV1().Deployments("semaphore").Patch(t.Context(), "semaphore-broker",
		types.StrategicMergePatchType, []byte(limit), metav1.PatchOptions{FieldManager: "kubectl-set"}))(t)
	const other = "install --image r.example/semaphore:v2"
	const owned = "nothing was written: c1: Deployment semaphore/semaphore-broker: others own fields"
	refuses(2, other, owned)
	lost("--image r.example/semaphore:v2 --node-subnets 172.18.1.7/32", owned)
	kubetest.Create(t, admin.CoreV1().Services("default"), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "taken"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 1, NodePort: 31001}}}})
	refuses(2, "install --node-port 31001", "c1: Service semaphore/semaphore-broker-federation: ")
	ctl(0, other+" --force-conflicts", " changed")
	refuses(2, "install --image r.example/semaphore:v3",
		"nothing was written: c1: Deployment semaphore/semaphore-broker: ")
}

// withoutDryRuns is a kubeconfig of the same apiserver whose connections end when it is asked for a dry run.
func withoutDryRuns(t *testing.T, kubeconfig string, cfg *rest.Config) string {
	t.Helper()
	pass := httputil.NewSingleHostReverseProxy(testkit.Value(url.Parse(cfg.Host))(t))
	pass.Transport = testkit.Value(rest.TransportFor(cfg))(t)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("dryRun") {
			panic(http.ErrAbortHandler)
		}
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	raw := clientcmd.GetConfigFromFileOrDie(kubeconfig)
	for _, c := range raw.Clusters {
		c.Server, c.CertificateAuthorityData, c.InsecureSkipTLSVerify = server.URL, nil, true
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(*raw, file))
	return file
}

// refusesImages has the apiserver refuse Deployments of an image with the tag v3, for a reason of the policy's choice.
func refusesImages(t *testing.T, admin kubernetes.Interface) {
	t.Helper()
	kubetest.RefuseFor(t, admin, metav1.StatusReasonRequestEntityTooLarge, admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.OperationAll},
		Rule: admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"},
			Resources: []string{"deployments"}}},
		"object.spec.template.spec.containers.all(c, !c.image.endsWith(':v3'))", "no v3")
	pods := map[string]string{"app": "refused"}
	refused := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "refused"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: pods}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: pods},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "refused", Image: "x:v3"}}}}}}
	testkit.Eventually(t, time.Minute, "the policy is in force", func() error {
		_, err := admin.AppsV1().Deployments("default").Create(t.Context(), refused,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "no v3") {
			return fmt.Errorf("a dry run ends with %w", err)
		}
		return nil
	})
}

// inEffect has RemoteClusters in effect as they are, as far as the broker's store tells.
func inEffect(t *testing.T, cfg *rest.Config, names ...string) {
	t.Helper()
	objects := remotes.Objects{}
	for _, r := range testkit.Value(testkit.Value(fleet.New("", cfg))(t).RemoteClusters(t.Context()))(t) {
		if slices.Contains(names, r.Name) {
			objects[r.Name] = remotes.Of(r, "")
		}
	}
	kubetest.Create(t, kubernetes.NewForConfigOrDie(cfg).CoreV1().ConfigMaps("semaphore"), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "semaphore-broker-remotes"},
		Data:       map[string]string{remotes.StoredKey: string(testkit.Value(json.Marshal(objects))(t))}})
}

// namespaced makes the namespace of the parts, as for them.
func namespaced(t *testing.T, admin kubernetes.Interface) {
	t.Helper()
	kubetest.Create(t, admin.CoreV1().Namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "semaphore",
		Labels: map[string]string{apply.PartOf: "semaphore"}}})
}

// uninstallsWhatIsHalfThere: uninstall removes what an install leaves that ends before there is a key.
func uninstallsWhatIsHalfThere(t *testing.T, admin kubernetes.Interface, ctl func(int, string, string)) {
	t.Helper()
	namespaced(t, admin)
	kubetest.Create(t, admin.CoreV1().ConfigMaps("semaphore"), &corev1.ConfigMap{Immutable: new(true),
		ObjectMeta: metav1.ObjectMeta{Name: identity.BundlesConfigMap}})
	ctl(1, "install", "immutable")
	ctl(0, "uninstall --yes", "c1: removed")
	_, err := admin.CoreV1().Namespaces().Get(t.Context(), "semaphore", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("uninstall leaves the namespace: %v", err)
	}
}

// withoutOwnNames: once the broker no longer writes slices under own names of Services, install deletes them, and no
// other.
func withoutOwnNames(t *testing.T, admin kubernetes.Interface, ctl func(want int, args string) string) {
	t.Helper()
	beside := admin.DiscoveryV1().EndpointSlices("default")
	for name, labels := range map[string]map[string]string{"theirs": {}, "ours": {naming.LabelOwnName: "failover",
		naming.LabelManagedBy: naming.ManagedByBroker}} {
		kubetest.Create(t, beside, &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
	}
	ctl(0, "install")
	kubetest.Get(t, beside, "ours") // the broker has the component still
	api := admin.CoreV1().Nodes()
	node := kubetest.Create(t, api, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n7",
		Labels: map[string]string{corev1.LabelOSStable: "linux"}},
		Spec: corev1.NodeSpec{PodCIDR: "10.1.7.0/24", PodCIDRs: []string{"10.1.7.0/24"},
			Taints: []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}}})
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.18.1.17"}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
	kubetest.UpdateStatus(t, api, node)
	testkit.Eventually(t, time.Minute, "an agent is to run on a node that is away", func() error {
		agents, err := admin.AppsV1().DaemonSets("semaphore").Get(t.Context(), "semaphore-agent", metav1.GetOptions{})
		if err == nil && agents.Status.DesiredNumberScheduled != 1 {
			err = fmt.Errorf("on %d nodes", agents.Status.DesiredNumberScheduled)
		}
		return err
	})
	out := ctl(1, "install --components= --timeout 20s")
	for _, want := range []string{" 0 available: node n7 of pod semaphore-agent-", " is not ready: "} {
		if !strings.Contains(out, want) {
			t.Errorf("with a node that is away it prints no %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "all parts are ready") {
		t.Errorf("all are ready although a node is away:\n%s", out)
	}
	if _, err := beside.Get(t.Context(), "ours", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("without the component, what leads to other clusters is there still: %v", err)
	}
	must(t, api.Delete(t.Context(), "n7", metav1.DeleteOptions{}))
	must(t, admin.CoreV1().Pods("semaphore").DeleteCollection(t.Context(),
		metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, metav1.ListOptions{FieldSelector: "spec.nodeName=n7"}))
	ctl(0, "install")
	must(t, beside.Delete(t.Context(), "theirs", metav1.DeleteOptions{}))
}

// usesWhatIsServed: components whose types the cluster serves are installed, and printed, unless the operator leaves
// them out; then nothing of them is there. The Multi-Cluster Services API stays on while its definitions are gone.
func usesWhatIsServed(t *testing.T, cfg *rest.Config, admin kubernetes.Interface, ctl func(int, string) string) {
	t.Helper()
	dyn := dynamic.NewForConfigOrDie(cfg)
	has := func() (out []string) {
		t.Helper()
		for what, get := range map[string]func() error{
			"mcs": func() error {
				_, err := admin.RbacV1().ClusterRoles().Get(t.Context(), "semaphore-broker-mcs", metav1.GetOptions{})
				return err
			},
			"monitors": func() error {
				_, err := dyn.Resource(podMonitors).Namespace("semaphore").Get(t.Context(), "semaphore", metav1.GetOptions{})
				return err
			},
			"network-policies": func() error {
				_, err := admin.NetworkingV1().NetworkPolicies("semaphore").Get(t.Context(), "semaphore-broker",
					metav1.GetOptions{})
				return err
			},
		} {
			if err := get(); err == nil {
				out = append(out, what)
			} else if !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
		}
		slices.Sort(out)
		return out
	}
	ctltest.ServeType(t, cfg, podMonitors, "PodMonitor")
	ctltest.Golden(t, "install-left-out", ctl(0, "install --components=-mcs,-monitors,-network-policies"))
	if got := has(); len(got) > 0 {
		t.Errorf("left out, and there: %q", got)
	}
	ctltest.Golden(t, "install-served", ctl(0, "install --components="))
	if got := has(); len(got) != 3 {
		t.Errorf("there is only %q", got)
	}
	refusesUnread(t, cfg)
	if got := has(); len(got) != 3 {
		t.Errorf("without the right to list PodMonitors, an upgrade leaves only %q", got)
	}
	removeDefinition(t, cfg, "serviceexports.multicluster.x-k8s.io")
	if out := ctl(0, "install --dry-run=client -o yaml"); !strings.Contains(out, "name: semaphore-broker-mcs") {
		t.Error("without the definition of ServiceExports, install turns them off")
	}
	if out := ctl(0, "install --components mcs"); strings.Count(out, "created, as there is none") != 1 {
		t.Errorf("a definition is not applied:\n%s", out)
	}
}

// refusesUnread: a type that cannot be listed is not taken for one that is not served: an upgrade writes nothing, and
// removes nothing, unless the operator decides about the component.
func refusesUnread(t *testing.T, cfg *rest.Config) {
	t.Helper()
	limited, end := ctltest.WithoutListing(t, cfg, podMonitors.GroupResource())
	defer end()
	kubeconfig := kubetest.Kubeconfig(t, limited)
	for _, x := range []struct {
		args     string
		want     int
		monitors bool
	}{{"", 2, false}, {"--components=monitors --dry-run=client -o yaml", 0, true},
		{"--components=-monitors --dry-run=client -o yaml", 0, false}} {
		out, code, err := ctltest.Run(t, strings.Fields("install --kubeconfig "+kubeconfig+" "+x.args)...)
		if code != x.want || strings.Contains(out, "kind: PodMonitor") != x.monitors || x.want != 0 &&
			(!strings.Contains(out, "ERROR    NotRead  test: unread objects: podmonitors: ") ||
				!strings.Contains(out, "--components=monitors, or --components=-monitors")) {
			t.Errorf("install %s: exit code %d, %v\n%s", x.args, code, err, out)
		}
	}
}

var podMonitors = ctltest.Monitoring.WithResource("podmonitors")

var rules = ctltest.Monitoring.WithResource("prometheusrules")

func removeDefinition(t *testing.T, cfg *rest.Config, name string) {
	t.Helper()
	definitions := apiextensionsclient.NewForConfigOrDie(cfg).ApiextensionsV1().CustomResourceDefinitions()
	must(t, definitions.Delete(t.Context(), name, metav1.DeleteOptions{}))
	must(t, wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true,
		func(ctx context.Context) (bool, error) {
			_, err := definitions.Get(ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err), nil
		}))
}

// encryptionLater: install adds encryption only when each RemoteCluster has what it needs.
func encryptionLater(t *testing.T, cfg *rest.Config, ctl func(want int, args string) string) {
	t.Helper()
	ctl(0, "install --features services,policy")
	remotes := dynamic.NewForConfigOrDie(cfg).Resource(v1alpha1.RemoteClusters)
	kubetest.CreateRemote(t, cfg, "c2", "{podSubnets: [10.2.0.0/16]}")
	inEffect(t, cfg, "c2")
	ctltest.Golden(t, "install-no-node-subnets", ctl(2, "install --features encryption,services,policy"))
	agents := func() bool {
		t.Helper()
		_, err := kubernetes.NewForConfigOrDie(cfg).AppsV1().DaemonSets("semaphore").Get(t.Context(), "semaphore-agent",
			metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return err == nil
	}
	if agents() {
		t.Error("it was refused, and agents were installed")
	}
	ctltest.Patch(t, remotes, "c2", `{"spec":{"nodeSubnets":["192.0.2.0/24"]}}`)
	ctl(0, "install --features encryption,services,policy")
	if !agents() {
		t.Error("no agents were installed")
	}
}

// TestInstallWithoutCoreDNS: a cluster without CoreDNS, c1, does not keep install --dns from the next one.
func TestInstallWithoutCoreDNS(t *testing.T) {
	first, _ := ctltest.EmptyCluster(t, "c1", "10.1.0.0/16", "172.18.1.7", false)
	second, cfg := ctltest.EmptyCluster(t, "c2", "10.2.0.0/16", "172.18.2.7", false)
	all, c2 := clientcmd.GetConfigFromFileOrDie(first), clientcmd.GetConfigFromFileOrDie(second)
	all.Clusters["c2"], all.AuthInfos["c2"] = c2.Clusters["test"], c2.AuthInfos["test"]
	all.Contexts["c2"] = &clientcmdapi.Context{Cluster: "c2", AuthInfo: "c2"}
	must(t, clientcmd.WriteToFile(*all, first))
	files := kubernetes.NewForConfigOrDie(cfg).CoreV1().ConfigMaps("kube-system")
	kubetest.Create(t, files, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "coredns"},
		Data: map[string]string{"Corefile": ".:53 {\n}\n"}})
	out, code, err := ctltest.Run(t, strings.Fields("install --context c1,c2 --dns --features services --kubeconfig "+
		first)...)
	if code != 1 || err == nil || !strings.Contains(err.Error(), "c1: there is no ConfigMap kube-system/coredns") {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
	if text := kubetest.Get(t, files, "coredns").Data["Corefile"]; !strings.Contains(text, "cluster.global {") {
		t.Errorf("the Corefile of c2 is\n%s", text)
	}
}

// TestExcludedCNIs: beside the CNIs of providers that tunnels cannot work with, check --pre and install name the CNI
// and the reason, and write nothing.
func TestExcludedCNIs(t *testing.T) {
	kubeconfig, cfg := ctltest.EmptyCluster(t, "c1", "10.1.0.0/16", "172.18.1.7", false)
	admin := kubernetes.NewForConfigOrDie(cfg)
	must(t, ctltest.AwaitDefault(t, admin))
	everything := func() []string {
		return slices.DeleteFunc(strings.Split(ctltest.Everything(t, cfg), "\n"), func(line string) bool {
			return strings.Contains(line, " controllerrevisions ") // the DaemonSets' controller writes them
		})
	}
	daemons := admin.AppsV1().DaemonSets("kube-system")
	for daemon, cni := range map[string]string{"aws-node": "the AWS VPC CNI: it assigns",
		"anetd": "GKE Dataplane V2: its eBPF", "azure-cns": "Azure CNI: it assigns", "cilium": "Cilium: its eBPF",
		"ovnkube-node": "OVN-Kubernetes: Open vSwitch"} {
		labels := map[string]string{"app": daemon}
		kubetest.Create(t, daemons, &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: daemon},
			Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec: corev1.PodSpec{NodeSelector: map[string]string{"no": "node"},
						Containers: []corev1.Container{{Name: "cni", Image: "example.test/cni"}}}}}})
		before := everything()
		for _, verb := range []string{"check --pre", "install"} {
			out, code, err := ctltest.Run(t, strings.Fields(verb+" --context c1 --kubeconfig "+kubeconfig)...)
			if code != 2 || !strings.Contains(out, "CNIExcluded") || !strings.Contains(out, cni) {
				t.Errorf("%s beside %s: exit code %d, %v\n%s", verb, daemon, code, err, out)
			}
		}
		if d := cmp.Diff(before, everything()); d != "" {
			t.Errorf("beside %s was written:\n%s", daemon, d)
		}
		must(t, daemons.Delete(t.Context(), daemon, metav1.DeleteOptions{}))
	}
}
