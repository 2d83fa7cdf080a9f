// Package crds holds the CustomResourceDefinitions of semaphore as files, for those who apply them. It imports nothing.
package crds

import _ "embed"

// RemoteClusters is the definition of RemoteCluster, YAML; make generate makes it from api/v1alpha1.
//
//go:embed remoteclusters.yaml
var RemoteClusters []byte
