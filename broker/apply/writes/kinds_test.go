package writes

import (
	"testing"

	semaphorev1 "github.com/kube-semaphore/semaphore/proto/semaphore/v1"
)

// TestWrittenAs: each kind that a remote can export has the kind whose times status reports for it.
func TestWrittenAs(t *testing.T) {
	want := map[semaphorev1.Kind]ObjectKind{
		semaphorev1.Kind_KIND_NODE: "node", semaphorev1.Kind_KIND_SERVICE: "service",
		semaphorev1.Kind_KIND_ENDPOINT_SLICE: "endpointslice", semaphorev1.Kind_KIND_SET_MEMBER: "globalnetworkset",
	}
	for _, exported := range semaphorev1.Kinds {
		if got := WrittenAs(exported); got == "" || got != want[exported] {
			t.Errorf("%s is written as %q, want %q", exported, got, want[exported])
		}
	}
	if got := WrittenAs(semaphorev1.Kind_KIND_UNSPECIFIED); got != "" {
		t.Errorf("an unknown kind is written as %q", got)
	}
}

func TestPlural(t *testing.T) {
	for kind, want := range map[ObjectKind]string{
		Service: "services", GlobalNetworkSet: "globalnetworksets", Endpoints: "endpoints", Drains: "drains",
	} {
		if got := kind.Plural(); got != want {
			t.Errorf("several of %s are %q, want %q", kind, got, want)
		}
	}
}
