package link

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/broker"
	"github.com/kube-semaphore/semaphore/exporter"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/test/testbed/components"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
	"github.com/kube-semaphore/semaphore/test/testkit/loopback"
)

// mounted acts as the kubelet for a volume: it writes the data of a Secret or ConfigMap to files of a directory.
func mounted(t *testing.T, admin kubernetes.Interface, dir, kind, namespace, name string) {
	t.Helper()
	data := map[string][]byte{}
	if kind == "Secret" {
		s := kubetest.Get(t, admin.CoreV1().Secrets(namespace), name)
		data = s.Data
	} else {
		c := kubetest.Get(t, admin.CoreV1().ConfigMaps(namespace), name)
		for key, text := range c.Data {
			data[key] = []byte(text)
		}
	}
	must(t, os.MkdirAll(dir, 0o700))
	for key, content := range data {
		must(t, os.WriteFile(filepath.Join(dir, key), content, 0o600))
	}
}

// configOf returns the configuration file that a Deployment mounts.
func configOf(t *testing.T, admin kubernetes.Interface, namespace, deployment string) string {
	t.Helper()
	d := kubetest.Get(t, admin.AppsV1().Deployments(namespace), deployment)
	for _, v := range d.Spec.Template.Spec.Volumes {
		if v.Name == "config" {
			c := kubetest.Get(t, admin.CoreV1().ConfigMaps(namespace), v.ConfigMap.Name)
			return c.Data["config.yaml"]
		}
	}
	t.Fatalf("Deployment %s mounts no configuration", deployment)
	return ""
}

// agentlessClusters returns the cluster c1, for semaphore, and one with the context legacy, in which no part runs.
func agentlessClusters(t *testing.T) (c1, c2 *rest.Config, ctl func(want int, args string) string) {
	t.Helper()
	ctltest.Controllers = append(ctltest.Controllers, "serviceaccount-token-controller")
	t.Cleanup(func() { ctltest.Controllers = ctltest.Controllers[:len(ctltest.Controllers)-1] })
	var kubeconfig, second string
	kubeconfig, c1 = ctltest.EmptyCluster(t, "c1", "10.1.0.0/16", "172.18.1.7", true)
	second, c2 = ctltest.EmptyCluster(t, "legacy", "10.2.0.0/16", "172.18.2.7", false)
	t.Setenv("KUBECONFIG", kubeconfig+":"+renamed(t, second))
	must(t, ctltest.AwaitDefault(t, kubernetes.NewForConfigOrDie(c1)))
	must(t, ctltest.AwaitDefault(t, kubernetes.NewForConfigOrDie(c2)))
	ports := regexp.MustCompile(`127\.0\.0\.1:\d+`)
	ctl = func(want int, args string) string {
		t.Helper()
		out, code, err := ctltest.Run(t, strings.Fields(args)...)
		if code != want {
			t.Fatalf("%s: exit code %d, %v\n%s", args, code, err, out)
		}
		if err != nil {
			out += "error: " + err.Error() + "\n"
		}
		return ports.ReplaceAllString(ctltest.Durations.ReplaceAllString(out, "TIME"), "127.0.0.1:PORT")
	}
	return c1, c2, ctl
}

// TestAgentless: one command starts an exporter beside the broker of c1 that reads a cluster in which only a
// ServiceAccount is installed; no certificate is created by hand. A real broker and a real exporter run with the
// configuration of the manifests. The same command replaces a revoked token; TestRemoteAPI of internal/kube tests that
// a running client uses the new one. unlink leaves nothing in either cluster.
func TestAgentless(t *testing.T) {
	c1, c2, ctl := agentlessClusters(t)
	here, there := kubernetes.NewForConfigOrDie(c1), kubernetes.NewForConfigOrDie(c2)
	ctl(0, "install --context c1 --features services,policy")
	before, beforeThere := ctltest.Everything(t, c1), ctltest.Everything(t, c2)
	link := "link --context c1 --agentless legacy=c2 --yes --api legacy=" + c2.Host
	readsNoPools(t, c1, ctl, link)
	ctltest.Golden(t, "agentless-loopback", ctl(1, "link --context c1 --agentless legacy=c2"))
	ctltest.Golden(t, "agentless", ctl(0, link))
	if out := ctl(2, strings.Replace(link, c2.Host, "https://192.0.2.1:6443", 1)); !strings.Contains(out,
		"its exporter reads https://127.0.0.1:PORT, not https://192.0.2.1:6443") {
		t.Errorf("another apiserver by the name of one that is read:\n%s", out)
	}

	dir := t.TempDir()
	address := loopback.Address(t)
	startBroker(t, here, c1, dir, address)
	mount := func() {
		mounted(t, here, filepath.Join(dir, "exporter-tls"), "Secret", "semaphore-c2", "semaphore-exporter-tls")
		mounted(t, here, filepath.Join(dir, "exporter-bundles"), "ConfigMap", "semaphore-c2", "semaphore-bundles")
		mounted(t, here, filepath.Join(dir, "reader"), "Secret", "semaphore-c2", "semaphore-reader")
	}
	mount()
	text := configOf(t, here, "semaphore-c2", "semaphore-exporter")
	text = strings.ReplaceAll(text, "semaphore-broker-federation.semaphore.svc:8443", address)
	text = strings.ReplaceAll(text, "/etc/semaphore/reader", filepath.Join(dir, "reader"))
	cfg := testkit.Value(config.Parse[config.Exporter](fmt.Appendf(nil, `%s
leaderElection: {enabled: false}
tls: {certFile: %[2]s/exporter-tls/tls.crt, keyFile: %[2]s/exporter-tls/tls.key, bundleDir: %[2]s/exporter-bundles}
listen: {http: %[3]q, debugSocket: %[2]s/exporter.sock}
`, text, dir, loopback.Address(t))))(t)
	if cfg.Cluster != "c2" || cfg.Features.Has(config.Encryption) || cfg.Events {
		t.Errorf("the exporter's configuration is\n%s", text)
	}
	testkit.Run(t, func(ctx context.Context) error { return exporter.Run(ctx, cfg) })
	mirrored := func(name, ip string) error {
		return ctltest.Mirrored(t.Context(), here, "c2-default-73736d-"+name, ip)
	}
	ctltest.Offer(t, there, "default", "echo", "10.2.0.9")
	took := testkit.Eventually(t, 3*time.Minute, "the Service of the other cluster is mirrored",
		func() error { return mirrored("echo", "10.2.0.9") })
	t.Logf("mirrored %s after it was offered", took)
	pod := kubetest.Create(t, there.CoreV1().Pods("default"), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "client",
		Labels: map[string]string{"semaphore.uw.systems/name": "client"}},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}}})
	ctltest.Patch(t, there.CoreV1().Pods("default"), pod.Name,
		`{"status":{"phase":"Running","podIP":"10.2.0.10","podIPs":[{"ip":"10.2.0.10"}]}}`, "status")
	dynamicHere := dynamic.NewForConfigOrDie(c1)
	testkit.Eventually(t, 3*time.Minute, "the pod is in a set", func() error {
		set, err := dynamicHere.Resource(kubetest.CalicoCRD.WithResource("globalnetworksets")).Get(t.Context(),
			"c2-default-client", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if nets, _, _ := unstructured.NestedStringSlice(set.Object, "spec", "nets"); len(nets) != 1 ||
			!strings.HasPrefix(nets[0], "10.2.0.10") {
			return fmt.Errorf("its addresses are %q", nets)
		}
		return nil
	})
	remotes := dynamicHere.Resource(v1alpha1.RemoteClusters)
	testkit.Eventually(t, 3*time.Minute, "the RemoteCluster is connected", func() error {
		r, err := remotes.Get(t.Context(), "c2", metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(r.Object, "status", "conditions")
		for _, c := range conditions {
			c := c.(map[string]any)
			if bad := c["type"] != "Exporting" && c["status"] != "True"; bad {
				return fmt.Errorf("%v", c)
			}
		}
		if len(conditions) == 0 {
			return errors.New("no conditions")
		}
		return nil
	})

	// The second call changes only what is necessary: certificate and token stay.
	certificate := func() string {
		s := kubetest.Get(t, here.CoreV1().Secrets("semaphore-c2"), "semaphore-exporter-tls")
		return string(s.Data["tls.crt"])
	}
	first := certificate()
	ctl(0, link)
	if certificate() != first {
		t.Error("the second call made another certificate")
	}

	// The token is revoked. The next call creates another one, and the exporter continues.
	must(t, there.CoreV1().Secrets("semaphore-reader").Delete(t.Context(), "semaphore-reader-c1", metav1.DeleteOptions{}))
	old := testkit.Value(os.ReadFile(filepath.Join(dir, "reader", "token")))(t)
	testkit.Eventually(t, 3*time.Minute, "the token is revoked", func() error {
		byToken := kubernetes.NewForConfigOrDie(&rest.Config{Host: c2.Host, BearerToken: string(old),
			TLSClientConfig: rest.TLSClientConfig{CAData: c2.CAData}})
		if _, err := byToken.CoreV1().Services("default").List(t.Context(), metav1.ListOptions{}); err == nil {
			return errors.New("it reads Services still")
		}
		return nil
	})
	ctl(0, link)
	mount()
	if string(testkit.Value(os.ReadFile(filepath.Join(dir, "reader", "token")))(t)) == string(old) {
		t.Fatal("the token is the one that was revoked")
	}
	ctltest.Offer(t, there, "default", "later", "10.2.0.11")
	testkit.Eventually(t, 3*time.Minute, "a Service that is offered after the token was replaced is mirrored",
		func() error { return mirrored("later", "10.2.0.11") })

	// The objects from before, the new Services and the pod remain.
	ctltest.Golden(t, "agentless-unlink", ctl(0, "unlink --context c1 --agentless legacy=c2 --yes"))
	testkit.Eventually(t, 3*time.Minute, "the mirrors are deleted", func() error {
		if mirrored("echo", "10.2.0.9") == nil {
			return errors.New("echo is there")
		}
		return nil
	})
	for _, name := range []string{"echo", "later"} {
		must(t, there.CoreV1().Services("default").Delete(t.Context(), name, metav1.DeleteOptions{}))
		must(t, there.DiscoveryV1().EndpointSlices("default").Delete(t.Context(), name+"-1", metav1.DeleteOptions{}))
	}
	must(t, there.CoreV1().Pods("default").Delete(t.Context(), "client",
		metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	testkit.Eventually(t, 3*time.Minute, "nothing is left", func() error {
		if d := cmp.Diff(strings.Split(beforeThere, "\n"), strings.Split(ctltest.Everything(t, c2), "\n")); d != "" {
			return errors.New("in c2: " + d)
		}
		// The running broker keeps its own state.
		left := slices.DeleteFunc(strings.Split(ctltest.Everything(t, c1), "\n"), func(line string) bool {
			return strings.HasPrefix(line, "v1 configmaps semaphore semaphore-broker-remotes ")
		})
		if d := cmp.Diff(strings.Split(before, "\n"), left); d != "" {
			return errors.New("in c1: " + d)
		}
		return nil
	})

	// A cluster that has semaphore of its own by now stays linked.
	kubetest.CreateObject(t, remotes, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.RemoteClusters.GroupVersion().String(), "kind": "RemoteCluster",
		"metadata": map[string]any{"name": "c2"},
		"spec": map[string]any{"podSubnets": []any{"10.2.0.0/16"},
			"broker": map[string]any{"address": "192.0.2.9:8443"}},
	}})
	out := ctl(0, "unlink --context c1 --agentless legacy=c2 --yes")
	if !strings.Contains(out, "RemoteCluster c2 has a broker") {
		t.Error(out)
	}
	kubetest.GetObject(t, remotes, "c2")
}

// TestAgentlessEnds: a reader has only the rights for what it exports, and the exporter what platform and Prometheus
// need. Another call of link keeps its rights and adds requested ones, but removes none before unlink. The commands
// that unlink --force and uninstall print remove what they cannot reach.
func TestAgentlessEnds(t *testing.T) {
	c1, c2, ctl := agentlessClusters(t)
	here, there := kubernetes.NewForConfigOrDie(c1), kubernetes.NewForConfigOrDie(c2)
	before := ctltest.Everything(t, c2)
	monitors := ctltest.Monitoring.WithResource("podmonitors")
	ctltest.ServeType(t, c1, monitors, "PodMonitor")
	ctl(0, "install --context c1 --features services,policy")
	// The component openshift has it, whose other types this apiserver does not serve.
	const admits = "semaphore-openshift"
	kubetest.Create(t, here.RbacV1().RoleBindings("semaphore"), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: admits},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "any"}})
	link := "link --context c1 --agentless legacy=c2 --yes --api legacy=" + c2.Host
	may := func(resource string) bool {
		t.Helper()
		secret := kubetest.Get(t, there.CoreV1().Secrets("semaphore-reader"), "semaphore-reader-c1")
		reader := kubernetes.NewForConfigOrDie(&rest.Config{Host: c2.Host, BearerToken: string(secret.Data["token"]),
			TLSClientConfig: rest.TLSClientConfig{CAData: c2.CAData}})
		answer := kubetest.Create(t, reader.AuthorizationV1().SelfSubjectAccessReviews(),
			&authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Resource: resource}}})
		return answer.Status.Allowed
	}
	reads := func(services, pods bool) {
		t.Helper()
		// The apiserver learns of roles by a watch.
		testkit.Eventually(t, 3*time.Minute, "the rights", testkit.State(func() (bool, string) {
			s, p := may("services"), may("pods")
			return s == services && p == pods, fmt.Sprintf("services %t, pods %t", s, p)
		}))
		roles := testkit.Value(there.RbacV1().ClusterRoles().List(t.Context(), metav1.ListOptions{}))(t)
		bindings := testkit.Value(there.RbacV1().ClusterRoleBindings().List(t.Context(), metav1.ListOptions{}))(t)
		var names []string
		for _, r := range roles.Items {
			names = append(names, r.Name)
		}
		for _, b := range bindings.Items {
			names = append(names, b.Name)
		}
		if has := slices.Contains(names, "semaphore-reader-policy-c1"); has != pods {
			t.Errorf("a role or binding for pods is there: %t", has)
		}
	}
	gone := func(what string) {
		t.Helper()
		testkit.Eventually(t, 3*time.Minute, what, func() error {
			if d := cmp.Diff(strings.Split(before, "\n"), strings.Split(ctltest.Everything(t, c2), "\n")); d != "" {
				return errors.New(d)
			}
			return nil
		})
	}
	ctl(0, link)
	kubetest.Get(t, here.RbacV1().RoleBindings("semaphore-c2"), admits)
	kubetest.GetObject(t, dynamic.NewForConfigOrDie(c1).Resource(monitors).Namespace("semaphore-c2"), "semaphore")
	reads(true, true)
	exports := func(want ...config.Feature) {
		t.Helper()
		var is struct{ Features config.Features }
		text := configOf(t, here, "semaphore-c2", "semaphore-exporter")
		must(t, yaml.Unmarshal([]byte(text), &is))
		if !slices.Equal(is.Features, want) {
			t.Errorf("the exporter's configuration is\n%s", text)
		}
	}
	ctltest.Golden(t, "agentless-fewer", ctl(2, link+" --features services"))
	reads(true, true)
	exports(config.Services, config.Policy)
	ctl(0, "unlink --context c1 --agentless legacy=c2 --yes") // as it says
	ctl(0, link+" --features encryption,services")
	reads(true, false)
	exports(config.Encryption, config.Services)
	ctl(0, link)
	reads(true, false)
	exports(config.Encryption, config.Services)
	ctl(0, link+" --features encryption,services,policy")
	reads(true, true)
	exports(config.Encryption, config.Services, config.Policy)
	// c2 is another cluster than the one that stands, as after it was built again. That word stays.
	ctl(0, link+" --replace c2")
	ctl(0, link)
	remote := kubetest.GetObject(t, dynamic.NewForConfigOrDie(c1).Resource(v1alpha1.RemoteClusters), "c2")
	system := kubetest.Get(t, there.CoreV1().Namespaces(), "kube-system")
	if id, _, _ := unstructured.NestedString(remote.Object, "spec", "sourceID"); id != string(system.UID) {
		t.Errorf("link --replace lets %q in, not %s", id, system.UID)
	}

	ctltest.Golden(t, "agentless-forget", ctl(0, "unlink c2 --force --context c1"))
	ctltest.Golden(t, "agentless-forget-yes", ctl(0, "unlink c2 --force --context c1 --yes"))
	if _, err := here.CoreV1().Namespaces().Get(t.Context(), "semaphore-c2", metav1.GetOptions{}); err == nil {
		t.Error("the exporter outlives unlink --force")
	}
	ctl(0, "unlink --context c1 --agentless legacy=c2 --yes") // as it says
	gone("nothing is left in c2 after unlink --force and unlink")

	ctl(0, link)
	ctltest.Golden(t, "agentless-uninstall", ctl(0, "uninstall --context c1"))
	out := ctl(0, "uninstall --context c1 --yes")
	ctltest.Golden(t, "agentless-uninstall-yes", out)
	_, commands, found := strings.Cut(out, "with the kubeconfig of c2:\n")
	if !found {
		t.Fatalf("no commands in\n%s", out)
	}
	shell := exec.Command("sh", "-ec", commands)
	shell.Env = append(os.Environ(), "KUBECONFIG="+kubetest.Kubeconfig(t, c2),
		"PATH="+kubectlDir(t)+":"+os.Getenv("PATH"))
	text, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, commands, text)
	}
	if _, last, ok := strings.Cut(commands, "# where no other cluster reads it: kubectl delete namespace "); !ok ||
		last != "semaphore-reader\n" {
		t.Errorf("the namespace is not named: %q", commands)
	}
	must(t, there.CoreV1().Namespaces().Delete(t.Context(), "semaphore-reader", metav1.DeleteOptions{}))
	gone("nothing is left in c2 after uninstall and what it printed")
}

// kubectlDir returns a directory with kubectl: that of the testbed, or otherwise one of PATH.
func kubectlDir(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("SEMAPHORE_TESTBED_BIN"); dir != "" {
		return dir
	}
	if path, err := exec.LookPath("kubectl"); err == nil {
		return filepath.Dir(path)
	}
	return filepath.Dir(testkit.Value(components.Ensure(t.Context(), os.Stderr))(t).Kubectl)
}

// readsNoPools: where Calico's pools cannot be read, the nodes' podCIDRs are not taken for the subnets of c1's pods,
// from which those of the other cluster have to be apart: link says so, and writes nothing.
func readsNoPools(t *testing.T, c1 *rest.Config, ctl func(int, string) string, link string) {
	t.Helper()
	limited, end := ctltest.WithoutListing(t, c1, kubetest.CalicoCRD.WithResource("ippools").GroupResource())
	defer end()
	file := kubetest.Kubeconfig(t, limited)
	raw := clientcmd.GetConfigFromFileOrDie(file)
	raw.Contexts["limited"], raw.CurrentContext = raw.Contexts["test"], "limited"
	must(t, clientcmd.WriteToFile(*raw, file))
	t.Setenv("KUBECONFIG", os.Getenv("KUBECONFIG")+":"+renamed(t, file))
	out := ctl(2, strings.Replace(link, "c1", "limited", 1))
	for _, want := range []string{"WARNING  NotRead  limited: unread objects: IPPools of Calico: ",
		"ERROR    SubnetsUnknown  limited: pod subnets: none were found", "--pod-subnets limited=CIDR",
		"error: nothing was written: 1 error, 1 warning"} {
		if !strings.Contains(out, want) {
			t.Errorf("without the right to list IPPools, link does not say %q:\n%s", want, out)
		}
	}
}

// renamed returns a kubeconfig whose cluster and user have names of their own, so that it can be merged with another
// one.
func renamed(t *testing.T, file string) string {
	t.Helper()
	raw := clientcmd.GetConfigFromFileOrDie(file)
	context := raw.Contexts[raw.CurrentContext]
	name := raw.CurrentContext
	raw.Clusters[name], raw.AuthInfos[name] = raw.Clusters[context.Cluster], raw.AuthInfos[context.AuthInfo]
	delete(raw.Clusters, "test")
	delete(raw.AuthInfos, "test")
	delete(raw.Contexts, "test")
	context.Cluster, context.AuthInfo = name, name
	must(t, clientcmd.WriteToFile(*raw, file))
	return file
}

// startBroker runs c1's broker with the file and the keys that install created.
func startBroker(t *testing.T, admin kubernetes.Interface, c1 *rest.Config, dir, address string) {
	t.Helper()
	mounted(t, admin, filepath.Join(dir, "broker-tls"), "Secret", "semaphore", "semaphore-broker-tls")
	mounted(t, admin, filepath.Join(dir, "broker-bundles"), "ConfigMap", "semaphore", "semaphore-bundles")
	cfg := testkit.Value(config.Parse[config.Broker](fmt.Appendf(nil, `%s
leaderElection: {enabled: false, namespace: semaphore}
kube: {kubeConfigPath: %[2]q}
tls: {certFile: %[3]s/broker-tls/tls.crt, keyFile: %[3]s/broker-tls/tls.key, bundleDir: %[3]s/broker-bundles}
listen: {federation: %[4]q, peering: %[5]q, http: %[6]q, debugSocket: %[3]s/broker.sock, services: []}
`, configOf(t, admin, "semaphore", "semaphore-broker"), kubetest.Kubeconfig(t, c1), dir, address, loopback.Address(t),
		loopback.Address(t))))(t)
	testkit.Run(t, func(ctx context.Context) error { return broker.Run(ctx, cfg) })
}
