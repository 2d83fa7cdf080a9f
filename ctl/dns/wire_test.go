package dns

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/api/v1alpha1"
	"github.com/kube-semaphore/semaphore/ctl/apply"
	"github.com/kube-semaphore/semaphore/ctl/fleet"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// coreDNS returns CoreDNS's Deployment as in K3s and AKS, with the optional ConfigMap of additions.
func coreDNS() *appsv1.Deployment {
	labels := map[string]string{"k8s-app": "kube-dns"}
	optional := true
	volume := func(name, of string, optional *bool) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: of}, Optional: optional}}}
	}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "coredns"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "coredns", Image: "coredns", VolumeMounts: []corev1.VolumeMount{
				{Name: "config-volume", MountPath: "/etc/coredns"},
				{Name: "custom-config-volume", MountPath: "/etc/coredns/custom"}}}},
			Volumes: []corev1.Volume{volume("config-volume", "coredns", nil),
				volume("custom-config-volume", "coredns-custom", &optional)},
		}},
	}}
}

// TestDNSByImport: if the Corefile imports server blocks, semaphore's are in a file of their own, and the Corefile and
// the files of others do not change. A real CoreDNS answers with the file, which follows the RemoteClusters. Namespace
// and imports are those of the broker's configuration: Helm and kustomize leave no record of what they installed.
func TestDNSByImport(t *testing.T) {
	kubeconfig, cfg := ctltest.EmptyCluster(t, "c1", "10.1.0.0/16", "172.18.1.7", false)
	admin := kubernetes.NewForConfigOrDie(cfg)
	must(t, ctltest.AwaitDefault(t, admin))
	kubetest.InstallRemoteClusters(t, cfg)
	mirrors(t, admin)
	ctx, maps := t.Context(), admin.CoreV1().ConfigMaps("kube-system")
	kubetest.Create(t, admin.AppsV1().Deployments("kube-system"), coreDNS())
	kubetest.Namespace(t, admin, "parts")
	kubetest.Create(t, admin.CoreV1().ConfigMaps("parts"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "conf"},
		Data: map[string]string{"config.yaml": "mirrorNamespace: mirrors\nmcs: {enabled: true}\n"}})
	broker := coreDNS()
	broker.Name = "semaphore-broker"
	broker.Spec.Template.Spec.Containers[0].VolumeMounts[0].MountPath = fleet.PodConfig
	broker.Spec.Template.Spec.Volumes[0].ConfigMap.Name = "conf"
	kubetest.Create(t, admin.AppsV1().Deployments("parts"), broker)
	remotes := dynamic.NewForConfigOrDie(cfg).Resource(v1alpha1.RemoteClusters)
	access := fleet.Access{Contexts: []string{"c1"}, Kubeconfig: kubeconfig, Namespace: "parts"}
	c := testkit.Value(access.Cluster())(t)
	a := apply.New(c, os.Stderr)
	wire := func(always bool) string {
		t.Helper()
		var said strings.Builder
		must(t, Wire(ctx, &said, a, always))
		return strings.TrimSuffix(strings.TrimPrefix(said.String(), "c1: "), "\n")
	}
	custom := func() map[string]string {
		t.Helper()
		m := kubetest.Get(t, maps, "coredns-custom")
		return m.Data
	}
	for _, corefile := range []string{ctltest.K3sCorefile, strings.ReplaceAll(ctltest.K3sCorefile, "/etc/coredns/custom",
		"custom")} {
		kubetest.Create(t, maps, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "coredns"},
			Data: map[string]string{"Corefile": corefile, "NodeHosts": "172.18.1.7 n1"}})
		kubetest.CreateRemote(t, cfg, "c2", "{podSubnets: [10.2.0.0/16]}")

		if said := wire(false); said != "" {
			t.Errorf("what is not wired was wired: %s", said)
		}
		if said := wire(true); said != "CoreDNS: wrote ConfigMap kube-system/coredns-custom, key semaphore.server" {
			t.Errorf("it said %q", said)
		}
		if d, err := admin.AppsV1().Deployments("kube-system").Get(ctx, "coredns", metav1.GetOptions{}); err != nil ||
			d.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"] == "" {
			t.Errorf("CoreDNS was not restarted: %v", err)
		}
		if said := wire(true); said != "" {
			t.Errorf("the second time it said %q", said)
		}
		kubetest.Get(t, admin.CoreV1().ConfigMaps("mirrors"), "semaphore-dns") // where the broker looks for it
		ctltest.Patch(t, maps, "coredns-custom", `{"data":{"example.server":"example.org {\n    errors\n}\n"}}`)
		dir := t.TempDir()
		for key, text := range custom() {
			text = strings.ReplaceAll(text, "pods insecure",
				"kubeconfig "+kubetest.Kubeconfig(t, cfg)+"\n        pods insecure")
			must(t, os.WriteFile(filepath.Join(dir, key), []byte(text), 0o600))
		}
		const remote, global = "echo.shop.svc.cluster.c2.", "echo.shop.svc.cluster.global."
		const imported = "echo.shop.svc.clusterset.local."
		server := startCoreDNS(t, "import "+dir+"/*.server\n", kubetest.Kubeconfig(t, cfg), remote, global, imported)
		for name, want := range map[string]string{remote: "10.96.7.1", global: "10.96.7.4", imported: "10.96.7.5"} {
			if code, got, err := resolve(ctx, server, name, dnsmessage.TypeA); err != nil || len(got) != 1 || got[0] != want {
				t.Errorf("%s: %s, %v, %v; want %s", name, code, got, err, want)
			}
		}

		// The broker was faster: the text is there, and CoreDNS is restarted for it once.
		kubetest.CreateRemote(t, cfg, "c4", "{podSubnets: [10.4.0.0/16]}")
		text, _, err := testkit.Value(Find(ctx, a))(t).remotes(ctx)
		must(t, err)
		patch := testkit.Value(json.Marshal(map[string]any{"data": map[string]any{"semaphore.server": text}}))(t)
		ctltest.Patch(t, maps, "coredns-custom", string(patch))
		if said := wire(false); said !=
			"CoreDNS: restarted to read ConfigMap kube-system/coredns-custom, key semaphore.server" {
			t.Errorf("after the broker it said %q", said)
		}
		if said := wire(false); said != "" {
			t.Errorf("then it said %q", said)
		}
		// A domain with a block of somebody else's gets no second one.
		ctltest.Patch(t, maps, "coredns-custom", `{"data":{"c4.server":"cluster.c4:53 {\n    errors\n}\n"}}`)
		if said := wire(false); !strings.Contains(said, "no block for cluster.c4: another block answers it") {
			t.Errorf("it said %q", said)
		}
		if text := custom()["semaphore.server"]; strings.Contains(text, "cluster.c4") {
			t.Errorf("the domain is there twice:\n%s", text)
		}
		ctltest.Patch(t, maps, "coredns-custom", `{"data":{"c4.server":null}}`)
		must(t, remotes.Delete(ctx, "c4", metav1.DeleteOptions{}))
		must(t, remotes.Delete(ctx, "c2", metav1.DeleteOptions{}))
		// A remote whose block would hide the own cluster's names is left out, with a message; the others are written.
		kubetest.CreateObject(t, remotes, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.Kind, "metadata": map[string]any{"name": "local"},
			"spec": map[string]any{"podSubnets": []any{"10.3.0.0/16"}}}})
		if said := wire(false); !strings.Contains(said, "no block for cluster.local: ") {
			t.Errorf("it said %q", said)
		}
		must(t, remotes.Delete(ctx, "local", metav1.DeleteOptions{}))
		if text := custom()["semaphore.server"]; strings.Contains(text, "cluster.c2") ||
			strings.Contains(text, "\ncluster.local {") || !strings.Contains(text, "cluster.global {") {
			t.Errorf("after the RemoteCluster was deleted the file is\n%s", text)
		}
		must(t, Unwire(ctx, a))
		if left := custom(); len(left) != 1 || left["example.server"] == "" {
			t.Errorf("afterwards there is %q", left)
		}
		m := kubetest.Get(t, maps, "coredns")
		if m.Data["Corefile"] != corefile {
			t.Errorf("the Corefile is\n%s", m.Data["Corefile"])
		}
		must(t, maps.Delete(ctx, "coredns", metav1.DeleteOptions{}))
		must(t, maps.Delete(ctx, "coredns-custom", metav1.DeleteOptions{}))
	}

	// In a section of the Corefile, which somebody else changes at the same moment.
	own := strings.Replace(ctltest.K3sCorefile, "import /etc/coredns/custom/*.server\n", "", 1)
	kubetest.Create(t, maps, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "coredns"},
		Data: map[string]string{"Corefile": own}})
	var faster atomic.Bool
	c.Config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return kubetest.RoundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/configmaps/coredns") &&
				faster.CompareAndSwap(true, false) {
				if _, err := maps.Patch(r.Context(), "coredns", "application/merge-patch+json",
					[]byte(`{"data":{"at":"`+time.Now().String()+`"}}`), metav1.PatchOptions{}); err != nil {
					t.Error(err)
				}
			}
			return next.RoundTrip(r)
		})
	})
	c = testkit.Value(fleet.NewCluster(c.Context, c.Namespace, c.Config))(t)
	a = apply.New(c, os.Stderr)
	faster.Store(true)
	if said := wire(true); said != "CoreDNS: wrote a section of ConfigMap kube-system/coredns" || faster.Load() {
		t.Errorf("beside another write it said %q", said)
	}
	// An add-on manager resets the Corefile: the next call of any verb adds the blocks again.
	resets := func() {
		t.Helper()
		m := kubetest.Get(t, maps, "coredns")
		m.Data = map[string]string{"Corefile": own}
		kubetest.Update(t, maps, m)
	}
	resets()
	if said := wire(false); said != "CoreDNS: wrote a section of ConfigMap kube-system/coredns" {
		t.Errorf("after a reset it said %q", said)
	}
	resets()
	must(t, Unwire(ctx, a)) // which ends it, also where the blocks are gone already
	if said := wire(false); said != "" {
		t.Errorf("after it was ended it said %q", said)
	}
	if said := wire(true); said == "" {
		t.Error("it was not wired again")
	}
	faster.Store(true)
	must(t, Unwire(ctx, a))
	if m, err := maps.Get(ctx, "coredns", metav1.GetOptions{}); err != nil || m.Data["Corefile"] != own || faster.Load() {
		t.Errorf("afterwards: %v, %v", m, err)
	}
}
