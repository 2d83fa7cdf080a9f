package check

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestRefusedRemoteIsFound: a RemoteCluster that the broker does not accept is an error, and the spec that is in effect
// in its place is checked.
func TestRefusedRemoteIsFound(t *testing.T) {
	api := kubetest.Start(t)
	kubetest.InstallRemoteClusters(t, api)
	admin := kubernetes.NewForConfigOrDie(api)
	dir := ctltest.Linked(t)
	kubetest.CreateRemote(t, api, "c2", "{podSubnets: [10.1.0.0/17], nodeSubnets: [172.16.0.0/12]}") // an own subnet
	file := brokerFile(t, dir, "kube: {kubeConfigPath: "+kubetest.Kubeconfig(t, api)+"}\n")
	found := func() (invalid, root string) {
		t.Helper()
		f, code := ctltest.Found(t, "--config", file, "--coredns", "none")
		if code != 2 || f["ConfigInvalid"].Subject != "RemoteCluster c2" {
			t.Errorf("exit code %d\n%+v", code, f)
		}
		out, _, _ := ctltest.Run(t, "coredns", "--config", file)
		return f["ConfigInvalid"].Evidence, out
	}
	if _, blocks := found(); strings.Contains(blocks, "cluster.c2") {
		t.Errorf("blocks of c2, of which nothing is in effect:\n%s", blocks)
	}
	kubetest.Namespace(t, admin, "semaphore")
	kubetest.Create(t, admin.CoreV1().ConfigMaps("semaphore"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: "semaphore-broker-remotes"}, Data: map[string]string{"remotes.json": `{"c2": {"name": "c2", "generation": 1,
"spec": {"podSubnets": ["10.2.0.0/16"], "nodeSubnets": ["172.16.0.0/12"]}}}`}})
	if invalid, blocks := found(); !strings.HasSuffix(invalid, "the spec of generation 1 stays in effect") ||
		!strings.Contains(blocks, "cluster.c2") {
		t.Errorf("with an earlier spec in effect: %s\n%s", invalid, blocks)
	}
}
