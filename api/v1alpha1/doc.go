// Package v1alpha1 is the API of semaphore's own resources: RemoteCluster, which says of one other cluster what is
// taken from it and what it is offered. It holds types only; what they mean is decided in internal/remotes.
//
// make generate makes the CustomResourceDefinition (deploy/crds) and the copying code from it.
//
// +kubebuilder:object:generate=true
// +groupName=semaphore.uw.io
package v1alpha1
