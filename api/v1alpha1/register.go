package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kind is that of a RemoteCluster, and Resource its name in the API.
const (
	Kind     = "RemoteCluster"
	Resource = "remoteclusters"
)

const CRDName = Resource + ".semaphore.uw.io"

var (
	GroupVersion   = schema.GroupVersion{Group: "semaphore.uw.io", Version: "v1alpha1"}
	RemoteClusters = GroupVersion.WithResource(Resource)

	builder = runtime.NewSchemeBuilder(func(s *runtime.Scheme) error {
		s.AddKnownTypes(GroupVersion, &RemoteCluster{}, &RemoteClusterList{})
		metav1.AddToGroupVersion(s, GroupVersion)
		return nil
	})
	AddToScheme = builder.AddToScheme
)
