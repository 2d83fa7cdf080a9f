package check

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/internal/coredns"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestCheckCoreDNS: the findings of check about a real cluster's CoreDNS, before and after the blocks that coredns
// prints are added.
func TestCheckCoreDNS(t *testing.T) {
	api := kubetest.Start(t)
	admin, err := kubernetes.NewForConfig(api)
	must(t, err)
	dir := ctltest.Linked(t)
	kubetest.InstallRemoteClusters(t, api)
	kubetest.CreateRemote(t, api, "c2", "{servicePrefix: two, podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]}")
	const mirrors = "mirrorNamespace: mirrors\n"
	broker := brokerFile(t, dir, mirrors+"kube: {kubeConfigPath: "+kubetest.Kubeconfig(t, api)+"}\n")

	if f, code := ctltest.Found(t, "--config", broker); code != 2 || f["CoreDNSUnreadable"].Level != finding.Warning ||
		!strings.Contains(f["CoreDNSUnreadable"].Evidence, `configmaps "coredns" not found`) {
		t.Errorf("no CoreDNS: exit code %d\n%+v", code, f)
	}
	if f, code := ctltest.Found(t, "--config", broker, "--coredns", "none"); code != 0 {
		t.Errorf("not to be looked at: exit code %d\n%+v", code, f)
	}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "coredns"},
		Data: map[string]string{"Corefile": ".:53 {\n  kubernetes cluster.local\n}\n"}}
	config = kubetest.Create(t, admin.CoreV1().ConfigMaps("kube-system"), config)
	f, code := ctltest.Found(t, "--config", broker)
	if missing := f["CoreDNSBlockMissing"]; code != 2 ||
		missing.Fix != "semaphorectl coredns --config "+broker+", and add what it prints" ||
		missing.Subject != "ConfigMap kube-system/coredns" {
		t.Errorf("without blocks: exit code %d\n%+v", code, f)
	}
	// The same Corefile, where semaphorectl had put blocks.
	kubetest.Namespace(t, admin, "mirrors")
	kubetest.Create(t, admin.CoreV1().ConfigMaps("mirrors"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: "semaphore-dns"}})
	if f, code := ctltest.Found(t, "--config", broker); code != 2 || f["CoreDNSLost"].Level != finding.Error ||
		f["CoreDNSBlockMissing"].Code != "" {
		t.Errorf("with lost blocks: exit code %d\n%+v", code, f)
	}
	must(t, admin.CoreV1().ConfigMaps("mirrors").Delete(t.Context(), "semaphore-dns", metav1.DeleteOptions{}))
	blocks, _, err := ctltest.Run(t, "coredns", "--config", broker)
	must(t, err)
	var old strings.Builder // before servicePrefix was set
	must(t, coredns.Print(&old, coredns.Of([]coredns.Remote{{Cluster: "c2"}}, "mirrors", "cluster.local", false), false))
	for _, test := range []struct {
		data  map[string]string
		flags []string
		code  int
		want  map[string]string // by code, what the evidence says
	}{
		{map[string]string{"Corefile": ".:53 {\n}\n" + blocks}, nil, 0,
			map[string]string{"CoreDNSComplete": "it has the server blocks of cluster.c2, cluster.global"}},
		{map[string]string{"Corefile": ".:53 {\n}\n" + old.String()}, nil, 2,
			map[string]string{"CoreDNSComplete": "of cluster.global",
				"CoreDNSBlockDiffers": `its server block cluster.c2 lacks the line "name regex`}},
		{map[string]string{"Corefile": ".:53 {\n}\n" + blocks}, []string{"--cluster-domain", "home.arpa"}, 2,
			map[string]string{"CoreDNSBlockDiffers": "home.arpa"}},
		{map[string]string{"Corefile": "import custom/*.server\n", "semaphore.server": blocks},
			[]string{"--coredns", "kube-system/coredns"}, 0, map[string]string{"CoreDNSComplete": "cluster.c2, cluster.global"}},
		{map[string]string{"other": blocks}, nil, 2,
			map[string]string{"CoreDNSUnreadable": "it has no key Corefile, only other"}},
	} {
		config.Data = test.data
		config = kubetest.Update(t, admin.CoreV1().ConfigMaps("kube-system"), config)
		f, code := ctltest.Found(t, append([]string{"--config", broker}, test.flags...)...)
		if code != test.code {
			t.Errorf("%v: exit code %d, not %d\n%+v", test.want, code, test.code, f)
		}
		for _, word := range []string{"CoreDNSComplete", "CoreDNSBlockMissing", "CoreDNSBlockDiffers", "CoreDNSUnreadable"} {
			if want, got := test.want[word], f[word]; (want == "") != (got.Code == "") || !strings.Contains(got.Evidence,
				want) {
				t.Errorf("%v: %s is %+v, not %q", test.flags, word, got, want)
			}
		}
	}

	// The blocks are in a file that the Corefile imports. A file that is not imported is not read.
	config.Data = map[string]string{"Corefile": ctltest.K3sCorefile}
	config = kubetest.Update(t, admin.CoreV1().ConfigMaps("kube-system"), config)
	custom := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "coredns-custom"},
		Data: map[string]string{"semaphore.disabled": blocks}}
	if f, code := ctltest.Found(t, "--config", broker); code != 2 || f["CoreDNSBlockMissing"].Code == "" {
		t.Errorf("without the file: exit code %d\n%+v", code, f)
	}
	custom = kubetest.Create(t, admin.CoreV1().ConfigMaps("kube-system"), custom)
	if f, code := ctltest.Found(t, "--config", broker); code != 2 || f["CoreDNSBlockMissing"].Code == "" {
		t.Errorf("with a file that is not imported: exit code %d\n%+v", code, f)
	}
	custom.Data = map[string]string{"semaphore.server": blocks}
	kubetest.Update(t, admin.CoreV1().ConfigMaps("kube-system"), custom)
	if f, code := ctltest.Found(t, "--config", broker); code != 0 || f["CoreDNSComplete"].Evidence !=
		"it has the server blocks of cluster.c2, cluster.global" {
		t.Errorf("with the file: exit code %d\n%+v", code, f)
	}

	// NodeLocal DNSCache answers pods in the place of CoreDNS, and its ConfigMap has no block.
	cache := kubetest.Create(t, admin.CoreV1().ConfigMaps("kube-system"), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "node-local-dns"},
		Data:       map[string]string{"Corefile": "cluster.local:53 {\n}\n.:53 {\n  forward . /etc/resolv.conf\n}\n"}})
	if f, code := ctltest.Found(t, "--config", broker); code != 2 ||
		f["CoreDNSBlockMissing"].Subject != "ConfigMap kube-system/node-local-dns" ||
		!strings.Contains(f["CoreDNSBlockMissing"].Evidence, "queries for them leave") {
		t.Errorf("with a cache: exit code %d\n%+v", code, f)
	}
	must(t, admin.CoreV1().ConfigMaps("kube-system").Delete(t.Context(), cache.Name, metav1.DeleteOptions{}))
	config.Data = map[string]string{"other": blocks}
	kubetest.Update(t, admin.CoreV1().ConfigMaps("kube-system"), config)

	// The check is skipped on a machine that is not a pod, unless a kubeconfig is given, and without services.
	brokerFile(t, dir, mirrors)
	if f, code := ctltest.Found(t, "--config", broker); code != 3 || f["CoreDNSNotRead"].Level != finding.NotChecked {
		t.Errorf("nowhere: exit code %d\n%+v", code, f)
	}
	if f, code := ctltest.Found(t, "--config", broker, "--kubeconfig", kubetest.Kubeconfig(t, api)); code != 2 ||
		f["CoreDNSUnreadable"].Code == "" {
		t.Errorf("with --kubeconfig: exit code %d\n%+v", code, f)
	}
	brokerFile(t, dir, mirrors+"features: [encryption, policy]\n")
	if f, code := ctltest.Found(t, "--config", broker); code != 3 || f["CoreDNSNotRead"].Code != "" ||
		f["RemotesNotChecked"].Level != finding.NotChecked ||
		!strings.HasPrefix(f["RemotesNotChecked"].Fix, "give --context or --kubeconfig ") {
		t.Errorf("without services: exit code %d\n%+v", code, f)
	}
}
