package writes

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

const FieldManager = naming.ManagedByBroker

// Reduce removes what a Machine does not need from an object: of managedFields it keeps only the entry of the last
// other writer.
func Reduce[T Object](object T) T {
	object.SetManagedFields(otherManager(object.GetManagedFields()))
	return object
}

// otherManager returns the managedFields entry of the last other writer, without the fields.
func otherManager(entries []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	var last *metav1.ManagedFieldsEntry
	for i := range entries {
		e := &entries[i]
		if e.Manager != FieldManager && e.Subresource == "" && e.Time != nil && (last == nil || last.Time.Before(e.Time)) {
			last = e
		}
	}
	if last == nil {
		return nil
	}
	return []metav1.ManagedFieldsEntry{{Manager: last.Manager, Operation: last.Operation, Time: last.Time}}
}

// managerOf names the last other writer of an object, as the subject of a sentence.
func managerOf(object metav1.Object) string {
	if fields := otherManager(object.GetManagedFields()); fields != nil {
		return fields[0].Manager
	}
	return "somebody"
}

// maxFields bounds how many fields are named.
const maxFields = 5

// fieldsThatDiffer names the fields in which two objects of a type differ, such as spec.ports or metadata.labels[x].
func fieldsThatDiffer(a, b runtime.Object) []string {
	x, errX := runtime.DefaultUnstructuredConverter.ToUnstructured(a)
	y, errY := runtime.DefaultUnstructuredConverter.ToUnstructured(b)
	if errX != nil || errY != nil {
		return []string{"some fields"} // API types always convert
	}
	var fields []string
	differ(x, y, "", &fields)
	slices.Sort(fields)
	if more := len(fields) - maxFields; more > 0 {
		fields = append(fields[:maxFields], fmt.Sprintf("%d more", more))
	}
	return fields
}

func differ(a, b map[string]any, path string, fields *[]string) {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		name := key
		switch {
		case path == "metadata.labels" || path == "metadata.annotations":
			name = path + "[" + key + "]"
		case path != "":
			name = path + "." + key
		}
		x, isX := a[key].(map[string]any)
		y, isY := b[key].(map[string]any)
		switch {
		case name == "metadata.managedFields" || name == "metadata.resourceVersion":
		case isX && (isY || b[key] == nil) || isY && a[key] == nil:
			differ(x, y, name, fields)
		case fmt.Sprint(a[key]) != fmt.Sprint(b[key]):
			*fields = append(*fields, name)
		}
	}
}
