package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/kubetest"
)

func TestDeletedOfABlockIsTextOrBool(t *testing.T) {
	for text, want := range map[string]Word{
		`{"deleted": "true"}`: "true", `{"deleted": "false"}`: "false", `{"deleted": ""}`: "",
		`{"deleted": true}`: "true", `{"deleted": false}`: "false", `{}`: "", `{"deleted": null}`: "", `{"deleted": 3}`: "3",
	} {
		var spec BlockAffinitySpec
		if err := json.Unmarshal([]byte(text), &spec); err != nil || spec.Deleted != want {
			t.Errorf("%s gives %q, %v", text, spec.Deleted, err)
		}
	}
}

// TestBlockAffinities: the cluster has no Calico, then Calico's CRDs, and then moves to the v3 API, in which a field
// has another type.
func TestBlockAffinities(t *testing.T) {
	cfg := kubetest.Start(t)
	b := NewBlockAffinities(cfg)
	lw := b.Follow(nil)
	ctx := t.Context()
	if _, err := lw.ListWithContextFunc(ctx, metav1.ListOptions{}); !errors.Is(err, ErrNoBlocks) {
		t.Errorf("list without Calico: %v", err)
	}
	if _, err := lw.WatchFuncWithContext(ctx, metav1.ListOptions{}); !errors.Is(err, ErrNoBlocks) {
		t.Errorf("watch without Calico: %v", err)
	}
	if b.Native() {
		t.Error("what is not served is native")
	}
	create := func(gv schema.GroupVersion, name string, deleted any) {
		t.Helper()
		affinities := dynamic.NewForConfigOrDie(cfg).Resource(gv.WithResource("blockaffinities"))
		kubetest.CreateObject(t, affinities, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": gv.String(), "kind": "BlockAffinity", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"node": "n1", "cidr": "10.1.2.0/26", "state": "confirmed", "deleted": deleted},
		}})
	}
	list := func() (string, *BlockAffinityList) {
		t.Helper()
		all := testkit.Value(lw.ListWithContextFunc(ctx, metav1.ListOptions{}))(t).(*BlockAffinityList)
		var out []string
		for _, a := range all.Items {
			out = append(out, fmt.Sprintf("%s %s %s %s %s", a.Name, a.Spec.Node, a.Spec.CIDR, a.Spec.State, a.Spec.Deleted))
		}
		slices.Sort(out)
		return strings.Join(out, ", "), all
	}

	kubetest.InstallCalico(t, cfg, calicoCRD, "blockaffinities")
	create(calicoCRD, "a", "false")
	got, all := list()
	if got != "a n1 10.1.2.0/26 confirmed false" || !b.Native() {
		t.Errorf("the CRD has %q, native: %v", got, b.Native())
	}
	events := testkit.Value(lw.WatchFuncWithContext(ctx, metav1.ListOptions{ResourceVersion: all.ResourceVersion}))(t)
	create(calicoCRD, "b", "true")
	select {
	case e := <-events.ResultChan():
		a, ok := e.Object.(*BlockAffinity)
		if !ok || a.Name != "b" || a.Spec.Deleted != "true" {
			t.Errorf("the watch has %v", e)
		}
	case <-time.After(3 * time.Minute):
		t.Error("the watch has nothing")
	}
	events.Stop()

	kubetest.InstallCalicoType(t, cfg, calicoV3, "blockaffinities", func(spec *apiextensions.JSONSchemaProps) {
		spec.Properties["deleted"] = apiextensions.JSONSchemaProps{Type: "boolean"}
	})
	create(calicoV3, "c", false)
	if _, err := lw.WatchFuncWithContext(ctx,
		metav1.ListOptions{ResourceVersion: all.ResourceVersion}); !apierrors.IsResourceExpired(err) {
		t.Errorf("a watch that continues, after the move: %v; want expired, so that a list follows", err)
	}
	if got, _ := list(); got != "c n1 10.1.2.0/26 confirmed false" || b.Native() {
		t.Errorf("the v3 API has %q, native: %v", got, b.Native())
	}
	yes := true
	if _, err := lw.WatchFuncWithContext(ctx, metav1.ListOptions{SendInitialEvents: &yes}); !errors.Is(err, ErrListFirst) {
		t.Errorf("a watch with initial events of the v3 API: %v", err)
	}
}
