package ctl

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/testkit"
	"github.com/kube-semaphore/semaphore/internal/testkit/kubetest"
)

// runPods acts as scheduler and kubelets: pods run and are ready immediately, those of Jobs succeed, and deleted ones
// go.
func runPods(t *testing.T, admin kubernetes.Interface) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-done
	})
	go func() {
		defer close(done)
		for kube.Sleep(ctx, 50*time.Millisecond) == nil {
			pods, err := admin.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
			if err != nil {
				continue
			}
			for i := range pods.Items {
				runPod(ctx, admin, &pods.Items[i])
			}
		}
	}()
}

// runPod makes one change of a pod's state. A change that fails is retried.
func runPod(ctx context.Context, admin kubernetes.Interface, p *corev1.Pod) {
	api := admin.CoreV1().Pods(p.Namespace)
	switch {
	case p.DeletionTimestamp != nil:
		_ = api.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	case p.Spec.NodeName == "":
		_ = api.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace},
			Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}, metav1.CreateOptions{})
	case p.Status.Phase == corev1.PodPending || p.Status.Phase == "":
		p.Status.Phase = corev1.PodRunning
		if p.Spec.RestartPolicy == corev1.RestartPolicyOnFailure {
			p.Status.Phase = corev1.PodSucceeded
		}
		for _, c := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady, corev1.PodInitialized} {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.Now()})
		}
		_, _ = api.UpdateStatus(ctx, p, metav1.UpdateOptions{})
	}
}

// controllers are the controllers of Kubernetes that run what is installed, and remove what is deleted.
var controllers = []string{"deployment-controller", "replicaset-controller", "daemonset-controller", "job-controller",
	"namespace-controller", "garbage-collector-controller", "serviceaccount-controller"}

// emptyCluster starts a real apiserver with one node and Kubernetes' controllers, and returns a kubeconfig with it as
// context name.
func emptyCluster(t *testing.T, name, pods, ip string, calico bool) (kubeconfig string, cfg *rest.Config) {
	t.Helper()
	cfg = kubetest.Start(t)
	if calico {
		kubetest.InstallCalico(t, cfg, kubetest.CalicoCRD, "globalnetworksets", "ippools", "blockaffinities", "ipamconfigs",
			"felixconfigurations", "networksets", "ipreservations")
		_, err := dynamic.NewForConfigOrDie(cfg).Resource(kubetest.CalicoCRD.WithResource("ippools")).Create(t.Context(),
			&unstructured.Unstructured{Object: map[string]any{"apiVersion": kubetest.CalicoCRD.String(), "kind": "IPPool",
				"metadata": map[string]any{"name": "default"}, "spec": map[string]any{"cidr": pods, "ipipMode": "Never",
					"vxlanMode": "Never", "natOutgoing": true, "nodeSelector": "all()"}}}, metav1.CreateOptions{})
		must(t, err)
	}
	admin := kubernetes.NewForConfigOrDie(cfg)
	node, err := admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Spec: corev1.NodeSpec{PodCIDR: pods, PodCIDRs: []string{pods}}}, metav1.CreateOptions{})
	must(t, err)
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}}
	node.Status.NodeInfo.KernelVersion, node.Status.NodeInfo.OSImage = "6.12.1", "Debian GNU/Linux 13"
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	_, err = admin.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	must(t, err)
	kubetest.StartControllers(t, cfg, controllers...)
	runPods(t, admin)
	file := kubetest.Kubeconfig(t, cfg)
	raw := clientcmd.GetConfigFromFileOrDie(file)
	raw.Contexts[name] = raw.Contexts[raw.CurrentContext]
	raw.CurrentContext = name
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(*raw, kubeconfig))
	return kubeconfig, cfg
}

// everything lists each object that could have been written, except those that the controllers write.
func everything(t *testing.T, cfg *rest.Config) string {
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
				out = append(out, fmt.Sprintln(list.GroupVersion, r.Name, o.GetNamespace(), o.GetName(), o.GetAnnotations()))
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, "")
}

// durations differ between two runs.
var durations = regexp.MustCompile(`(\d+m)?\d+(\.\d+)?m?s\b`)

// TestInstall: one command and a kubeconfig install semaphore in an empty cluster as in the manifests. A second call
// changes nothing, and uninstall restores the earlier state.
func TestInstall(t *testing.T) {
	kubeconfig, cfg := emptyCluster(t, "c1", "10.1.0.0/16", "172.18.1.7", true)
	admin := kubernetes.NewForConfigOrDie(cfg)
	home := t.TempDir()
	t.Chdir(home)
	t.Setenv("HOME", home)
	t.Setenv("TMPDIR", home)
	ctl := func(want int, args string) string {
		t.Helper()
		out, code, err := run(t, strings.Fields(args+" --context c1 --kubeconfig "+kubeconfig)...)
		if code != want {
			t.Fatalf("%s: exit code %d, %v\n%s", args, code, err, out)
		}
		if err != nil {
			out += "error: " + err.Error() + "\n"
		}
		return durations.ReplaceAllString(regexp.MustCompile(`v1\.\d+\.\d+\S*`).ReplaceAllString(out, "v1.N"), "TIME")
	}
	must(t, awaitDefault(t, admin))
	const corefile = ".:53 {\n    kubernetes example.org in-addr.arpa {\n    }\n}\n"
	_, err := admin.CoreV1().ConfigMaps("kube-system").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "coredns"}, Data: map[string]string{"Corefile": corefile}},
		metav1.CreateOptions{})
	must(t, err)
	names := func() string {
		t.Helper()
		c, err := admin.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "coredns", metav1.GetOptions{})
		must(t, err)
		return c.Data["Corefile"]
	}
	before := everything(t, cfg)
	if out := ctl(2, "install -n kube-system"); !strings.Contains(out, "namespace-taken") {
		t.Errorf("into a namespace of others:\n%s", out)
	}
	yaml := ctl(0, "install --dry-run=client -o yaml")
	for _, want := range []string{"kind: DaemonSet", "kind: CustomResourceDefinition", "cluster: c1"} {
		if !strings.Contains(yaml, want) {
			t.Errorf("--dry-run=client prints no %q", want)
		}
	}
	var asJSON struct{ Clusters []planned }
	must(t, json.Unmarshal([]byte(ctl(0, "install --dry-run=client -o json")), &asJSON))
	if len(asJSON.Clusters) != 1 || asJSON.Clusters[0].Context != "c1" ||
		len(asJSON.Clusters[0].Objects) != strings.Count(yaml, "\napiVersion: ") {
		t.Errorf("-o json prints %d clusters, YAML has %d objects", len(asJSON.Clusters),
			strings.Count(yaml, "\napiVersion: "))
	}
	if after := everything(t, cfg); after != before {
		t.Error("--dry-run=client wrote something")
	}
	golden(t, "install", ctl(0, "install"))
	golden(t, "install-again", ctl(0, "install"))
	for _, name := range []string{"semaphore-broker", "semaphore-exporter"} {
		d, err := admin.AppsV1().Deployments("semaphore").Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		if d.Status.AvailableReplicas != 2 {
			t.Errorf("%s: %d replicas are available", name, d.Status.AvailableReplicas)
		}
	}
	golden(t, "install-other-name", ctl(2, "install --cluster c9"))
	golden(t, "install-feature-removed", ctl(2, "install --features services,policy"))
	rights := func() error {
		_, err := admin.RbacV1().ClusterRoles().Get(t.Context(), "semaphore-broker-networksets", metav1.GetOptions{})
		return err
	}
	golden(t, "install-component", ctl(0, "install --components networksets"))
	must(t, rights())
	ctl(0, "install")
	must(t, rights()) // the earlier wishes
	ctl(0, "install --components=")
	if err := rights(); !apierrors.IsNotFound(err) {
		t.Errorf("without the component its rights are there still: %v", err)
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
	if out := ctl(0, "install --components mcs"); strings.Count(out, "created, as there is none") != 2 {
		t.Errorf("the definitions are not applied:\n%s", out)
	}
	for _, part := range []string{"semaphore-broker", "semaphore-exporter"} {
		imports(part, "mcs:\n  enabled: true")
	}
	ctl(0, "install --components=")

	golden(t, "install-dns", ctl(0, "install --dns"))
	if text := names(); !strings.HasPrefix(text, corefile) || !strings.Contains(text, "\ncluster.global {") ||
		!strings.Contains(text, `svc\.example\.org`) {
		t.Errorf("the Corefile is\n%s", text)
	}
	_, err = dynamic.NewForConfigOrDie(cfg).Resource(v1alpha1.RemoteClusters).Create(t.Context(),
		&unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.GroupVersion.String(),
			"kind": v1alpha1.Kind, "metadata": map[string]any{"name": "c2"},
			"spec": map[string]any{"podSubnets": []any{"10.2.0.0/16"}, "servicePrefix": "two"}}}, metav1.CreateOptions{})
	must(t, err)
	ctl(0, "install") // existing DNS blocks are updated
	if text := names(); !strings.Contains(text, "\ncluster.c2 {") || !strings.Contains(text, "two-{2}-73736d-{1}") {
		t.Errorf("the Corefile is\n%s", text)
	}

	_, err = admin.CoreV1().Nodes().Patch(t.Context(), "n1", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"c2.wireguard.semaphore.uw.io/pubKey":"x","other":"stays"}}}`),
		metav1.PatchOptions{})
	must(t, err)
	golden(t, "uninstall", ctl(2, "uninstall"))
	if _, err := admin.AppsV1().Deployments("semaphore").Get(t.Context(), "semaphore-broker",
		metav1.GetOptions{}); err != nil {
		t.Errorf("without --yes it was removed: %v", err)
	}
	golden(t, "uninstall-yes", ctl(0, "uninstall --yes"))
	_, err = admin.CoreV1().Nodes().Patch(t.Context(), "n1", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"other":null}}}`), metav1.PatchOptions{})
	must(t, err)
	// The definitions of the Multi-Cluster Services API, and the users' ServiceExports, outlive the component and the
	// parts.
	after, definitions := strings.Split(everything(t, cfg), "\n"), 0
	after = slices.DeleteFunc(after, func(line string) bool {
		is := strings.HasPrefix(line, "apiextensions.k8s.io/v1 customresourcedefinitions ") &&
			strings.Contains(line, ".multicluster.x-k8s.io ")
		if is {
			definitions++
		}
		return is
	})
	if d := cmp.Diff(strings.Split(before, "\n"), after); d != "" || definitions != 2 {
		t.Errorf("uninstall leaves something, or took too much; %d definitions stay:\n%s", definitions, d)
	}
	if text := names(); text != corefile {
		t.Errorf("uninstall leaves of the Corefile\n%q", text)
	}
	golden(t, "uninstall-again", ctl(0, "uninstall"))
	entries, err := os.ReadDir(home)
	must(t, err)
	for _, e := range entries {
		t.Errorf("%s was written on this machine", e.Name())
	}
	encryptionLater(t, cfg, ctl)
}

// encryptionLater: install adds encryption only when each RemoteCluster has what it needs.
func encryptionLater(t *testing.T, cfg *rest.Config, ctl func(want int, args string) string) {
	t.Helper()
	ctl(0, "install --features services,policy")
	remotes := dynamic.NewForConfigOrDie(cfg).Resource(v1alpha1.RemoteClusters)
	_, err := remotes.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.Kind, "metadata": map[string]any{"name": "c2"},
		"spec": map[string]any{"podSubnets": []any{"10.2.0.0/16"}}}}, metav1.CreateOptions{})
	must(t, err)
	golden(t, "install-no-node-subnets", ctl(2, "install --features encryption,services,policy"))
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
	_, err = remotes.Patch(t.Context(), "c2", types.MergePatchType, []byte(`{"spec":{"nodeSubnets":["192.0.2.0/24"]}}`),
		metav1.PatchOptions{})
	must(t, err)
	ctl(0, "install --features encryption,services,policy")
	if !agents() {
		t.Error("no agents were installed")
	}
}

// awaitDefault waits until the controllers, and the apiserver itself, have created the objects of a new cluster.
func awaitDefault(t *testing.T, admin kubernetes.Interface) error {
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
