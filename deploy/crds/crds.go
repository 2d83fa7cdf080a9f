// Package crds embeds the CustomResourceDefinitions of semaphore, for code that applies them.
package crds

import _ "embed"

// RemoteClusters is the definition of RemoteCluster, YAML; make generate makes it from api/v1alpha1.
//
//go:embed remoteclusters.yaml
var RemoteClusters []byte
