package check

import (
	"regexp"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/test/testkit/ctltest"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// TestCheckCalico: the findings of check about the Calico of a real cluster, in both groups; the commands in them fix
// the problem.
func TestCheckCalico(t *testing.T) {
	for _, gv := range []schema.GroupVersion{kubetest.CalicoCRD, {Group: "projectcalico.org", Version: "v3"}} {
		t.Run(gv.String(), func(t *testing.T) { testCheckCalico(t, gv) })
	}
}

func testCheckCalico(t *testing.T, gv schema.GroupVersion) {
	api := kubetest.Start(t)
	dir := ctltest.Linked(t)
	kubetest.InstallRemoteClusters(t, api)
	kubetest.CreateRemote(t, api, "c2", "{podSubnets: [10.2.0.0/16], nodeSubnets: [172.16.0.0/12]}")
	look := func() (map[string]show.Finding, int) {
		t.Helper()
		return ctltest.Found(t, "--config", brokerFile(t, dir, ""), "--coredns", "none", "--kubeconfig",
			kubetest.Kubeconfig(t, api), "--timeout", "2s")
	}
	if f, code := look(); code != 0 || f["PoolsHarmless"].Code != "" {
		t.Errorf("without Calico: exit code %d, %+v", code, f)
	}
	kubetest.InstallCalico(t, api, gv, "globalnetworksets", "ippools", "blockaffinities")
	// as an older Calico API server, which does not serve it
	kubetest.InstallCalico(t, api, kubetest.CalicoCRD, "ipamconfigs")
	client := dynamic.NewForConfigOrDie(api)
	create := func(gvr schema.GroupVersionResource, kind, name string, spec map[string]any) {
		t.Helper()
		kubetest.CreateObject(t, client.Resource(gvr), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": gvr.GroupVersion().String(), "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
		}})
	}
	configs := kubetest.CalicoCRD.WithResource("ipamconfigs")
	pools := gv.WithResource("ippools")
	create(pools, "IPPool", "own", map[string]any{"cidr": "10.1.0.0/16", "natOutgoing": true, "nodeSelector": "all()"})
	if f, code := look(); code != 2 || f["PoolMissing"].Level != finding.Warning {
		t.Errorf("without a pool: exit code %d, %+v", code, f)
	}
	create(pools, "IPPool", "pods-of-c2", map[string]any{"cidr": "10.2.0.0/16", "disabled": true,
		"nodeSelector": "all()"})
	create(pools, "IPPool", "left-over", map[string]any{"cidr": "10.2.4.0/24", "nodeSelector": "all()"})
	create(gv.WithResource("blockaffinities"), "BlockAffinity", "n1-10-1-2-0-26",
		map[string]any{"node": "n1", "cidr": "10.1.2.0/26", "state": "confirmed", "deleted": "false"})
	f, code := look()
	if code != 2 || f["PoolExported"].Level != finding.Warning || f["PoolEnabled"].Level != finding.Error ||
		f["AffinityNotStrict"].Fix != "calicoctl ipam configure --strictaffinity=true" {
		t.Errorf("a pool that is announced, one that is given out, no strict affinity: exit code %d, %+v", code, f)
	}
	create(configs, "IPAMConfig", "default", map[string]any{"strictAffinity": false, "autoAllocateBlocks": true})
	f, _ = look()
	for _, word := range []string{"PoolExported", "PoolEnabled", "AffinityNotStrict"} {
		command := regexp.MustCompile(`^kubectl patch (\S+?)\.(\S+) (\S+) --type merge -p '(.*)'$`).
			FindStringSubmatch(f[word].Fix)
		if command == nil {
			t.Fatalf("%s: %+v", word, f[word])
		}
		gvr := schema.GroupVersionResource{Group: command[2], Version: map[string]string{"crd.projectcalico.org": "v1",
			"projectcalico.org": "v3"}[command[2]], Resource: command[1]}
		ctltest.Patch(t, client.Resource(gvr), command[3], command[4])
	}
	kubetest.InstallCalico(t, api, gv, "networkpolicies", "globalnetworkpolicies", "networksets")
	create(gv.WithResource("globalnetworkpolicies"), "GlobalNetworkPolicy", "open", map[string]any{
		"types": []any{"Ingress"},
		"ingress": []any{map[string]any{"action": "Allow",
			"source": map[string]any{"selector": "semaphore.uw.systems/name == 'web'"}}},
	})
	kubetest.CreateObject(t, client.Resource(gv.WithResource("globalnetworksets")),
		&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": gv.String(), "kind": "GlobalNetworkSet",
			"metadata": map[string]any{"name": "c2-shop-web", "labels": map[string]any{
				"semaphore.uw.systems/name": "web", "semaphore.uw.systems/namespace": "shop",
				"semaphore.uw.systems/cluster": "c2",
			}}, "spec": map[string]any{"nets": []any{"10.2.0.1/32"}},
		}})
	if f, code := look(); code != 2 || f["PolicyWithoutCluster"].Level != finding.Warning {
		t.Errorf("a policy that lets any remote in: exit code %d, %+v", code, f)
	}
	must(t, client.Resource(gv.WithResource("globalnetworkpolicies")).Delete(t.Context(), "open", metav1.DeleteOptions{}))
	if f, code := look(); code != 0 || f["PoliciesNameClusters"].Level != finding.OK ||
		f["PoolsHarmless"].Level != finding.OK || f["AffinityStrict"].Level != finding.OK {
		t.Errorf("fixed: exit code %d, %+v", code, f)
	}
}
