package read

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The types of objects that several verbs read.
var (
	PodsGVR        = corev1.SchemeGroupVersion.WithResource("pods")
	ServicesGVR    = corev1.SchemeGroupVersion.WithResource("services")
	NamespacesGVR  = corev1.SchemeGroupVersion.WithResource("namespaces")
	NodesGVR       = corev1.SchemeGroupVersion.WithResource("nodes")
	ConfigMapsGVR  = corev1.SchemeGroupVersion.WithResource("configmaps")
	SlicesGVR      = schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}
	DaemonSetsGVR  = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}
	DeploymentsGVR = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
)

// MCSVersions are those of the Multi-Cluster Services API; v1alpha1 is served where v1beta1 is not.
var MCSVersions = []string{"v1beta1", "v1alpha1"}
