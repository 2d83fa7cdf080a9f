// Package v1alpha1 is the API of semaphore's own resources: a RemoteCluster describes another cluster, with the imports
// from it and the exports to it. It has types only; internal/remotes decides their meaning.
//
// make generate makes the CustomResourceDefinition (deploy/crds) and the copying code from it.
//
// +kubebuilder:object:generate=true
// +groupName=semaphore.uw.io
package v1alpha1
