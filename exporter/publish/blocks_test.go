package publish

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/exporter/catalog"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/finding"
	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

// exportsBlocks waits until the prefixes that are exported of nodes are want.
func exportsBlocks(t *testing.T, w *Watcher, want string) {
	t.Helper()
	soon(t, func() error {
		if got := blocksOf(w.catalog); got != want {
			return fmt.Errorf("exported are %q, not %q; read is all, or: %v", got, want, w.Synced())
		}
		return nil
	})
}

func blocksOf(c *catalog.Catalog) string {
	var out []string
	all, _ := c.Journal().Snapshot()
	for _, e := range all {
		out = append(out, e.Key.Name+": "+strings.Join(e.Value.Object.GetNode().GetPodCidrs(), " "))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// TestBlocks: what is exported of Calico's blocks, from a cluster that has them as CRDs and from one that has the v3
// API. Both begin without Calico, and without the right to read the blocks.
func TestBlocks(t *testing.T) {
	for _, gv := range []schema.GroupVersion{kubetest.CalicoCRD, {Group: "projectcalico.org", Version: "v3"}} {
		t.Run(gv.String(), func(t *testing.T) { testBlocks(t, gv) })
	}
}

func testBlocks(t *testing.T, gv schema.GroupVersion) {
	cfg := kubetest.Start(t)
	kubetest.NoLeaks(t, cfg)
	admin := client(t, cfg)
	native := gv == kubetest.CalicoCRD
	grant := func(group, resource string) {
		t.Helper()
		kubetest.AllowReading(t, admin, "exporter", group, resource)
	}
	grant("", "nodes")
	grant("", "namespaces")
	for _, name := range []string{"n1", "n2"} {
		kubetest.Create(t, admin.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.NodeSpec{PodCIDR: "10.1.200.0/24"}})
	}
	limited := rest.CopyConfig(cfg)
	limited.Impersonate.UserName = "exporter"
	limited.Impersonate.Groups = []string{"system:authenticated"} // all ServiceAccounts are: they may ask what is served

	c := catalog.New(catalog.Rules{Features: config.Features{config.Encryption}, Clusters: []string{"c2"},
		AllowedIPs: config.CalicoBlocks})
	w := start(t, limited, c)
	unread, ofNodes := "not read yet: blockaffinities: cannot list: ", []semaphorev1.Kind{semaphorev1.Kind_KIND_NODE}
	waits(t, w, ofNodes, unread, "is Calico installed")
	kubetest.InstallCalicoType(t, cfg, gv, "blockaffinities", func(spec *apiextensions.JSONSchemaProps) {
		if !native {
			spec.Properties["deleted"] = apiextensions.JSONSchemaProps{Type: "boolean"}
		}
	})
	waits(t, w, ofNodes, unread, `"exporter" cannot list resource "blockaffinities"`)

	affinities := dynamic.NewForConfigOrDie(cfg).Resource(gv.WithResource("blockaffinities"))
	affinity := func(node, block, state string, deleted bool) *unstructured.Unstructured {
		said := any(deleted)
		if native {
			said = fmt.Sprint(deleted)
		}
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": gv.String(), "kind": "BlockAffinity",
			"metadata": map[string]any{"name": node + "-" + strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(block)},
			"spec":     map[string]any{"node": node, "cidr": block, "state": state, "deleted": said},
		}}
	}
	create := func(a *unstructured.Unstructured) *unstructured.Unstructured {
		t.Helper()
		a = kubetest.CreateObject(t, affinities, a)
		return a
	}
	first := create(affinity("n1", "10.1.2.0/26", "confirmed", false))
	create(affinity("n1", "fd00:1:0:0:0:0:0:1c40/122", "confirmed", false))
	create(affinity("n2", "10.1.3.0/26", "pending", false))
	grant(gv.Group, "blockaffinities")
	waitForSync(t, w)
	exportsBlocks(t, w, "n1: 10.1.2.0/26 fd00:1::1c40/122, n2: ")
	if !w.Ready(semaphorev1.Kind_KIND_NODE) || w.Read(semaphorev1.Kind_KIND_NODE) == 0 {
		t.Error("nodes and their blocks are read, and are not published")
	}
	if w.resources[1].versionsComparable(semaphorev1.Kind_KIND_NODE) != native {
		t.Error("resourceVersions of the aggregated API are taken for those of the cluster, or those of the CRD are not")
	}

	// The block moves, as Calico does it.
	for _, step := range []map[string]any{{"state": "pendingDeletion"},
		{"deleted": affinity("", "", "", true).Object["spec"].(map[string]any)["deleted"]}} {
		for key, value := range step {
			must(t, unstructured.SetNestedField(first.Object, value, "spec", key))
		}
		first = kubetest.UpdateObject(t, affinities, first)
	}
	exportsBlocks(t, w, "n1: fd00:1::1c40/122, n2: ")
	must(t, affinities.Delete(t.Context(), first.GetName(), metav1.DeleteOptions{}))
	create(affinity("n2", "10.1.2.0/26", "confirmed", false))
	exportsBlocks(t, w, "n1: fd00:1::1c40/122, n2: 10.1.2.0/26")
	for _, o := range stored(w, "blockaffinities") {
		if o.(metav1.Object).GetManagedFields() != nil {
			t.Error("memory is spent on what is not exported")
		}
	}
	if p := finding.Texts(w.Findings()); len(p) > 0 {
		t.Errorf("problems: %q", p)
	}
}

// TestAutoBlocks: a cluster without Calico's types has no blocks, and is read whole without them; one that gets them
// later exports them, once it may read them.
func TestAutoBlocks(t *testing.T) {
	cfg := kubetest.Start(t)
	kubetest.NoLeaks(t, cfg)
	admin := client(t, cfg)
	for _, name := range []string{"n1", "n2"} {
		kubetest.Create(t, admin.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.NodeSpec{PodCIDR: "10.1.20" + name[1:] + ".0/24"}})
	}
	c := catalog.New(catalog.Rules{Features: config.Features{config.Encryption}, Clusters: []string{"c2"},
		AllowedIPs: config.AutoAllowedIPs})
	w := start(t, cfg, c)
	waitForSync(t, w)
	exportsBlocks(t, w, "n1: 10.1.201.0/24, n2: 10.1.202.0/24")
	if !w.Ready(semaphorev1.Kind_KIND_NODE) || w.Read(semaphorev1.Kind_KIND_NODE) == 0 {
		t.Error("nodes are read, and there are no blocks to be read: still, nodes are not published, or of no time")
	}
	if p := finding.Texts(w.Findings()); len(p) > 0 {
		t.Errorf("a cluster without Calico has problems %q", p)
	}
	kubetest.InstallCalico(t, cfg, kubetest.CalicoCRD, "blockaffinities")
	affinities := dynamic.NewForConfigOrDie(cfg).Resource(kubetest.CalicoCRD.WithResource("blockaffinities"))
	kubetest.CreateObject(t, affinities, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": kubetest.CalicoCRD.String(), "kind": "BlockAffinity",
		"metadata": map[string]any{"name": "n1-10-1-2-0-26"},
		"spec":     map[string]any{"node": "n1", "cidr": "10.1.2.0/26", "state": "confirmed", "deleted": "false"},
	}})
	exportsBlocks(t, w, "n1: 10.1.2.0/26, n2: 10.1.202.0/24")
	if !w.resources[1].versionsComparable(semaphorev1.Kind_KIND_NODE) || !w.Ready(semaphorev1.Kind_KIND_NODE) {
		t.Error("the blocks are read, and nodes are not published, or of a time without the blocks")
	}
}
