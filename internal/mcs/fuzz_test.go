package mcs

import (
	"encoding/json"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// FuzzManagedFields: whatever the managedFields of a ServiceExport say, no condition is invented, those that stay are
// as they were and in their order, and of no other field manager's conditions one goes.
func FuzzManagedFields(f *testing.F) {
	for _, text := range []string{
		`[{"manager":"semaphore-exporter","fieldsV1":{"f:status":` +
			`{"f:conditions":{"k:{\"type\":\"Ready\"}":{"f:reason":{}}}}}}]`,
		`[{"manager":"semaphore-exporter","fieldsV1":{"f:status":` +
			`{"f:conditions":{".":{},"k:":{"f:reason":{}},"":{"f:reason":1}}}}}]`,
		`[{"manager":"semaphore-exporter","fieldsV1":{"f:status":[]}},{"manager":"semaphore-exporter","fieldsV1":null},{}]`,
		`[{"manager":"other","fieldsV1":{"f:status":{"f:conditions":{"k:{\"type\":\"Valid\"}":{"f:reason":{}}}}}}]`,
		`[{"manager":"semaphore-exporter","fieldsV1":{"f:status":` +
			`{"f:conditions":{"v:{\"TYPE\":\"Valid\"}":{"f:reason":null}}}}}]`,
	} {
		f.Add([]byte(text), "Ready", "Valid")
	}
	f.Fuzz(func(t *testing.T, text []byte, one, other string) {
		e := &mcsv1beta1.ServiceExport{}
		if json.Unmarshal(text, &e.ManagedFields) != nil {
			return
		}
		e.Status.Conditions = []metav1.Condition{{Type: one, Reason: "A"}, {Type: other, Reason: "B"}, {Type: "C"}}
		before := e.DeepCopy()
		left := foreignConditions(e)
		if !slices.Equal(e.Status.Conditions, before.Status.Conditions) {
			t.Fatalf("the object's conditions are %v", e.Status.Conditions)
		}
		rest := e.Status.Conditions
		for _, c := range left {
			at := slices.Index(rest, c)
			if at < 0 {
				t.Fatalf("of %v these stay: %v", e.Status.Conditions, left)
			}
			rest = rest[at+1:]
		}
		for i := range e.ManagedFields {
			if e.ManagedFields[i].Manager == Exporter {
				e.ManagedFields[i].Manager = "other"
			}
		}
		if left := foreignConditions(e); !slices.Equal(left, before.Status.Conditions) {
			t.Fatalf("of another manager's these stay: %v", left)
		}
	})
}
