// Package deploy embeds the manifests of this directory for semaphorectl, which builds from them the same objects as
// `kubectl apply -k`. It owns no manifest and no default: the files do.
package deploy

import "embed"

// Manifests are the directories from which an overlay is made, with the paths that they have here.
//
//go:embed agent broker cleanup cluster-name crds exporter features foreign-exporter namespace reader
var Manifests embed.FS

// RemoteClusters is the definition of RemoteCluster, YAML; make generate makes it from api/v1alpha1.
//
//go:embed crds/remoteclusters.yaml
var RemoteClusters []byte
