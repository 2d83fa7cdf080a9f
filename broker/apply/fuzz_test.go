package apply

import (
	"encoding/json"
	"slices"
	"testing"

	calicov3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/semaphore/broker/apply/writes"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/kube"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// FuzzExistingMetadata: whatever the metadata of an object is that stands where the broker writes a set or a
// ServiceImport, as the Calico API server stores it, too, the written object has the broker's labels and annotations,
// no label of the broker's that it does not want, and the identity that it had, and is not written again.
func FuzzExistingMetadata(f *testing.F) {
	for _, text := range []string{
		`{"name":"s","uid":"1","resourceVersion":"7","labels":{"a":"b","semaphore.uw.io/source-cluster":"c3"}}`,
		`{"labels":{"managed-by":"semaphore-policy","semaphore.uw.systems/other":"x","service.kubernetes.io/headless":""}}`,
		`{"annotations":{"projectcalico.org/metadata":"{\"labels\":{\"managed-by\":\"x\"},\"annotations\":{\"a\":\"b\"}}"}}`,
		`{"labels":{"a":"b","c":"d"},"annotations":{"semaphore.uw.io/copied-labels":"a,,app.kubernetes.io/managed-by,c",` +
			`"semaphore.uw.io/copied-annotations":"semaphore.uw.io/source-name,x"}}`,
		`{"ownerReferences":[{}],"finalizers":["f"],"managedFields":[{"fieldsV1":{"f:metadata":{}}}]}`, `null`,
	} {
		f.Add([]byte(text))
	}
	labels := func(more ...string) map[string]string {
		all := map[string]string{naming.LabelManagedBy: naming.ManagedByBroker, naming.LabelSourceCluster: "c2"}
		for _, key := range more {
			all[key] = "wanted"
		}
		return all
	}
	meta := metav1.ObjectMeta{Name: "s", Labels: labels(naming.LabelSetManagedBy, naming.DefaultLabelDomain+"/name"),
		Annotations: map[string]string{naming.AnnotationSourceName: "web"}}
	set := &calicov3.GlobalNetworkSet{ObjectMeta: meta, Spec: calicov3.GlobalNetworkSetSpec{Nets: []string{"10.2.0.1/32"}}}
	sets := setKind(writes.GlobalNetworkSet, &calicov3.GlobalNetworkSet{},
		func(s *calicov3.GlobalNetworkSet) (*metav1.ObjectMeta, *[]string) { return &s.ObjectMeta, &s.Spec.Nets })
	imported := &mcsv1beta1.ServiceImport{ObjectMeta: *meta.DeepCopy()}
	imported.Labels["a"], imported.Annotations[naming.AnnotationCopiedLabels] = "copied", "a"

	f.Fuzz(func(t *testing.T, data []byte) {
		var have metav1.ObjectMeta
		if json.Unmarshal(data, &have) != nil {
			return
		}
		delete(have.Labels, "") // no apiserver takes an empty key
		delete(have.Annotations, "")
		check := func(got, before, want metav1.Object, again bool) {
			t.Helper()
			if !writes.Ours(got) || again || got.GetName() != before.GetName() || got.GetUID() != before.GetUID() ||
				got.GetResourceVersion() != before.GetResourceVersion() {
				t.Errorf("%q becomes %+v, which is written again: %t", data, got, again)
			}
			for key, value := range want.GetLabels() {
				kept := key == naming.LabelSetManagedBy && slices.Contains(config.Originals, before.GetLabels()[key])
				if got.GetLabels()[key] != value && !kept {
					t.Errorf("%q: label %s is %q", data, key, got.GetLabels()[key])
				}
			}
			for key, value := range want.GetAnnotations() {
				if got.GetAnnotations()[key] != value {
					t.Errorf("%q: annotation %s is %q", data, key, got.GetAnnotations()[key])
				}
			}
			for key := range got.GetLabels() {
				if _, wanted := want.GetLabels()[key]; !wanted && ourLabel(key) {
					t.Errorf("%q: label %s stays", data, key)
				}
			}
		}
		stands := &calicov3.GlobalNetworkSet{ObjectMeta: *have.DeepCopy()}
		kube.CopyCalicoMetadata(stands)
		became := sets.Merge(stands, set)
		check(became, stands, set, !sets.Equal(sets.Merge(became, set), became))

		other := &mcsv1beta1.ServiceImport{ObjectMeta: *have.DeepCopy()}
		merged := mergeImport(other, imported)
		check(merged, other, imported, !equality.Semantic.DeepEqual(mergeImport(merged, imported), merged))
	})
}
