package preflight

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestPreflight surveys a real apiserver with Calico's types, and writes nothing to it.
func TestPreflight(t *testing.T) {
	cfg := kubetest.Start(t)
	kubetest.InstallCalico(t, cfg, kubetest.CalicoCRD, "globalnetworksets", "ippools", "blockaffinities", "ipamconfigs",
		"felixconfigurations")
	admin, dyn := kubernetes.NewForConfigOrDie(cfg), dynamic.NewForConfigOrDie(cfg)
	for name, ip := range map[string]string{"n1": "172.18.0.2", "n2": "172.18.0.3"} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.NodeSpec{ProviderID: "kind://docker/c1/" + name}}
		n = kubetest.Create(t, admin.CoreV1().Nodes(), n)
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}}
		n.Status.NodeInfo.KernelVersion = "6.12.1-cloud"
		kubetest.UpdateStatus(t, admin.CoreV1().Nodes(), n)
	}
	create := func(resource, kind, name string, spec map[string]any) {
		t.Helper()
		kubetest.CreateObject(t, dyn.Resource(kubetest.CalicoCRD.WithResource(resource)),
			&unstructured.Unstructured{Object: map[string]any{
				"apiVersion": kubetest.CalicoCRD.String(), "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
			}})
	}
	create("ippools", "IPPool", "default", map[string]any{"cidr": "10.1.0.0/16", "ipipMode": "Never",
		"vxlanMode": "Always", "natOutgoing": true, "nodeSelector": "all()"})
	create("ippools", "IPPool", "remote", map[string]any{"cidr": "10.2.0.0/16", "disabled": true,
		"nodeSelector": "all()"})
	create("blockaffinities", "BlockAffinity", "n1-10-1-2-0-26", map[string]any{"node": "n1", "cidr": "10.1.2.0/26",
		"state": "confirmed", "deleted": "false"})
	create("felixconfigurations", "FelixConfiguration", "default", map[string]any{"wireguardEnabled": true})
	for name, data := range map[string]map[string]string{
		"coredns":        {"Corefile": ".:53 {\n    import custom/*.override\n    kubernetes cluster.local\n}\n"},
		"kube-proxy":     {"config.conf": "kind: KubeProxyConfiguration\nmode: nftables\n"},
		"kubeadm-config": {"ClusterConfiguration": "clusterName: prod-1\nnetworking: {podSubnet: 10.9.0.0/16}\n"},
	} {
		kubetest.Create(t, admin.CoreV1().ConfigMaps("kube-system"), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-system"}, Data: data})
	}
	before := countObjects(t, admin)
	kubeconfig := kubetest.Kubeconfig(t, cfg)
	out, code, err := ctltest.Run(t, "check", "--pre", "--kubeconfig", kubeconfig)
	out = regexp.MustCompile(`v1\.\d+\.\d+\S*`).ReplaceAllString(out, "v1.N")
	ctltest.Golden(t, "preflight", out)
	// Without strict affinity, nodes borrow addresses of other nodes' blocks.
	if code != 2 || err == nil || err.Error() != "0 errors, 1 warning" {
		t.Errorf("exit code %d, %v", code, err)
	}
	create("ipamconfigs", "IPAMConfig", "default", map[string]any{"strictAffinity": true, "autoAllocateBlocks": true})
	if out, code, err := ctltest.Run(t, "check", "--pre", "--kubeconfig", kubeconfig); code != 0 {
		t.Errorf("fixed: exit code %d, %v\n%s", code, err, out)
	}
	out, _, err = ctltest.Run(t, "check", "--pre", "--kubeconfig", kubeconfig, "-o", "json")
	must(t, err)
	var said struct {
		Clusters []struct {
			Context, AllowedIPs string
			Names               []string
			Subnets             map[string]struct{ Prefixes []string }
		}
	}
	must(t, json.Unmarshal([]byte(out), &said))
	if c := said.Clusters[0]; c.AllowedIPs != "calicoBlocks" || c.Names[0] != "prod-1" ||
		strings.Join(c.Subnets["pods"].Prefixes, " ") != "10.1.0.0/16" || len(c.Subnets["services"].Prefixes) != 1 {
		t.Errorf("%s", out)
	}
	withoutRights(t, cfg)
	if after := countObjects(t, admin); after != before {
		t.Errorf("there were %d namespaces, Services, ConfigMaps and Secrets, and now %d: preflight wrote", before, after)
	}
	rightsToInstall(t, cfg, admin)
}

// rightsToInstall: in a namespace of their own, those suffice who may write there, and roles and policies anywhere.
func rightsToInstall(t *testing.T, cfg *rest.Config, admin kubernetes.Interface) {
	t.Helper()
	kubetest.Namespace(t, admin, "mesh")
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "installs"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"", "apps"}, Resources: []string{"secrets", "daemonsets", "deployments"},
			Verbs: []string{"create"}}}}
	kubetest.Create(t, admin.RbacV1().ClusterRoles(), role.DeepCopy())
	role.Name, role.Rules[0].Verbs = "installs-anywhere", []string{"create", "escalate"}
	role.Rules[0].APIGroups = append(role.Rules[0].APIGroups, rbacv1.GroupName, "admissionregistration.k8s.io")
	role.Rules[0].Resources = []string{"namespaces", "clusterroles", "validatingadmissionpolicies"}
	kubetest.Create(t, admin.RbacV1().ClusterRoles(), role)
	who := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "installer"}}
	to := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "installs"}
	kubetest.Create(t, admin.RbacV1().RoleBindings("mesh"), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: to.Name}, Subjects: who, RoleRef: to})
	to.Name = role.Name
	kubetest.Create(t, admin.RbacV1().ClusterRoleBindings(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: to.Name}, Subjects: who, RoleRef: to})
	limited := rest.CopyConfig(cfg)
	limited.Impersonate = rest.ImpersonationConfig{UserName: "installer", Groups: []string{"system:authenticated"}}
	kubeconfig := kubetest.Kubeconfig(t, limited)
	for namespace, want := range map[string]int{"mesh": 0, "semaphore": 3} {
		// The apiserver learns of roles by a watch.
		testkit.Eventually(t, time.Minute, "the rights", func() error {
			out, _, _ := ctltest.Run(t, "check", "--pre", "-n", namespace, "--kubeconfig", kubeconfig)
			if n := strings.Count(out, "RightMissing"); n != want {
				return fmt.Errorf("in namespace %s, %d rights are missing, want %d:\n%s", namespace, n, want, out)
			}
			return nil
		})
	}
}

// withoutRights: what the caller may not read is neither absent nor guessed.
func withoutRights(t *testing.T, cfg *rest.Config) {
	t.Helper()
	limited := rest.CopyConfig(cfg)
	limited.Impersonate = rest.ImpersonationConfig{UserName: "nobody", Groups: []string{"system:authenticated"}}
	out, code, err := ctltest.Run(t, "check", "--pre", "--kubeconfig", kubetest.Kubeconfig(t, limited))
	if code != 2 {
		t.Errorf("without rights: exit code %d, %v", code, err)
	}
	for _, want := range []string{"nodes +not known", "pods +not known", "nodes' addresses +not known",
		"kube-proxy +not known", "allowedIPs +not known", "DNS +not known", "NotRead .*IPPools of Calico: ",
		"NotRead .*configmaps kube-system/coredns: ", "NotRead .*configmaps kube-system/kubeadm-config: ",
		"NotRead .*podmonitors: ", "NotRead .*servicecidrs: "} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("without rights it does not say %q:\n%s", want, out)
		}
	}
	for _, not := range []string{"NoCoreDNS", "NoCalico", "AffinityNotStrict", "NoPodCIDRs"} {
		if strings.Contains(out, not) {
			t.Errorf("without rights it says %q:\n%s", not, out)
		}
	}
}

// countObjects counts the objects that could have been written.
func countObjects(t *testing.T, admin kubernetes.Interface) int {
	t.Helper()
	namespaces := testkit.Value(admin.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}))(t)
	services := testkit.Value(admin.CoreV1().Services("").List(t.Context(), metav1.ListOptions{}))(t)
	configMaps := testkit.Value(admin.CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{}))(t)
	secrets := testkit.Value(admin.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}))(t)
	return len(namespaces.Items) + len(services.Items) + len(configMaps.Items) + len(secrets.Items)
}
