package apply

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-semaphore/semaphore/internal/naming"
)

// fieldManager is by what name our writes are known in managedFields, to whoever wants to know which fields are ours.
const fieldManager = naming.ManagedByBroker

// mergeMeta makes the labels and annotations that are ours what is wanted. Those of others stay, as ADR 14 says.
func mergeMeta(have, want *metav1.ObjectMeta) {
	labels := maps.Clone(have.Labels)
	maps.DeleteFunc(labels, func(key, _ string) bool { return ourLabel(key) })
	have.Labels = merged(labels, want.Labels)
	have.Annotations = merged(maps.Clone(have.Annotations), want.Annotations)
}

// merged is a map with what is in another.
func merged[V any](into, from map[string]V) map[string]V {
	if into == nil {
		into = map[string]V{}
	}
	maps.Copy(into, from)
	return into
}

// ourLabel says whether a label has an effect only as we want it: those by which our objects are known, those of the originals,
// and those by which kube-proxy, CoreDNS and the controllers of EndpointSlices know theirs.
func ourLabel(key string) bool {
	switch key {
	case naming.LabelManagedBy, naming.LabelSetManagedBy, naming.LabelGlobal, naming.LabelMirrored, naming.LabelMirrorPrefixSync,
		discoveryv1.LabelServiceName, discoveryv1.LabelManagedBy, corev1.IsHeadlessService:
		return true
	}
	domain, _, prefixed := strings.Cut(key, "/")
	return prefixed && slices.Contains(ourDomains, domain)
}

// ourDomains are those of labels that are ours: of this tool, of the originals, and service.kubernetes.io, where
// service-proxy-name keeps kube-proxy from a Service.
var ourDomains = []string{"semaphore.uw.io", "mirror.semaphore.uw.io", naming.DefaultLabelDomain, naming.PolicyLabelDomain, "service.kubernetes.io"}

// otherManager leaves of managedFields the entry of who wrote last but us, without the fields.
func otherManager(entries []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	var last *metav1.ManagedFieldsEntry
	for i := range entries {
		e := &entries[i]
		if e.Manager != fieldManager && e.Subresource == "" && e.Time != nil && (last == nil || last.Time.Before(e.Time)) {
			last = e
		}
	}
	if last == nil {
		return nil
	}
	return []metav1.ManagedFieldsEntry{{Manager: last.Manager, Operation: last.Operation, Time: last.Time}}
}

// managerOf is who wrote an object last but us, as a subject of a sentence.
func managerOf(object metav1.Object) string {
	if fields := otherManager(object.GetManagedFields()); fields != nil {
		return fields[0].Manager
	}
	return "somebody"
}

// maxFields is how many fields are named at most.
const maxFields = 5

// fieldsThatDiffer names the fields in which two objects of a type differ, such as spec.ports or metadata.labels[x].
func fieldsThatDiffer(a, b runtime.Object) []string {
	x, errX := runtime.DefaultUnstructuredConverter.ToUnstructured(a)
	y, errY := runtime.DefaultUnstructuredConverter.ToUnstructured(b)
	if errX != nil || errY != nil {
		return []string{"some fields"} // the objects are of types of the API, which can be converted
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
	for key := range merged(maps.Clone(a), b) {
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
