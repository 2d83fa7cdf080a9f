package install

import (
	"path"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Names of what reads a cluster in which nothing of semaphore runs (deploy/reader, deploy/foreign-exporter).
const (
	// ReaderNamespace is the one of the ServiceAccounts in the cluster that is read.
	ReaderNamespace = "semaphore-reader"
	// ReaderSecret is the Secret with the token and the apiserver's roots, beside the exporter.
	ReaderSecret = "semaphore-reader"
	// ForeignLabel is on the namespace of an exporter for another cluster, with the namespace of the parts that
	// it belongs to.
	ForeignLabel = "semaphore.uw.io/exporter-beside"

	readerDir      = "/reader"
	foreignDir     = "/foreign"
	readerMount    = "/etc/semaphore/reader/"
	federationPort = ":8443"
)

// Foreign is a cluster that an exporter beside another cluster's broker reads.
type Foreign struct {
	// Cluster is its name, and Reader that of the cluster in which the exporter runs.
	Cluster, Reader string
	// Parts is the namespace of the reader's broker.
	Parts    string
	Features config.Features
	// Image is as in Wishes.
	Image string
	// APIURL is the https URL of its apiserver. Without Roots, those of the image verify it.
	APIURL string
	Roots  bool
}

// Namespace is that of the exporter, in the cluster of the reader.
func (f Foreign) Namespace() string { return naming.ForeignNamespace(f.Cluster) }

// ReaderName is the name of the ServiceAccount and of its Secret in the cluster that is read.
func (f Foreign) ReaderName() string { return "semaphore-reader-" + f.Reader }

// ReaderOverlay is the directory that a person would write for the cluster that is read.
func ReaderOverlay(f Foreign, manifests string) (map[string][]byte, error) {
	k := kustomization{APIVersion: "kustomize.config.k8s.io/v1beta1", Kind: "Kustomization",
		Resources: []string{path.Join(manifests, "reader")}, NameSuffix: "-" + f.Reader}
	for _, feature := range f.Features {
		k.Components = append(k.Components, path.Join(manifests, "reader", string(feature)))
	}
	return texts(map[string]any{"kustomization.yaml": k})
}

// ForeignOverlay is the directory that a person would write for the exporter.
func ForeignOverlay(f Foreign, manifests string) (map[string][]byte, error) {
	kube := map[string]any{"remoteAPIURL": f.APIURL, "remoteSATokenPath": readerMount + "token"}
	if f.Roots {
		kube["remoteCAPath"] = readerMount + "ca.crt"
	}
	exporter := map[string]any{
		"cluster": f.Cluster, "features": f.Features, "events": false, "kube": kube,
		"brokers": []any{map[string]any{"cluster": f.Reader,
			"address": "semaphore-broker-federation." + f.Parts + ".svc" + federationPort}},
	}
	k := kustomization{APIVersion: "kustomize.config.k8s.io/v1beta1", Kind: "Kustomization", Namespace: f.Namespace(),
		Resources: []string{path.Join(manifests, "foreign-exporter")}, Components: []string{}, Images: imagesOf(f.Image),
		ConfigMaps: []generator{{Name: "semaphore-exporter", Namespace: DefaultNamespace, Behavior: "merge",
			Files: []string{"config.yaml=exporter.yaml"}}}}
	return texts(map[string]any{"kustomization.yaml": k, "exporter.yaml": exporter})
}

// BuildReader makes the objects in the cluster that is read.
func BuildReader(f Foreign) ([]*unstructured.Unstructured, error) {
	files, err := ReaderOverlay(f, "../deploy")
	if err != nil {
		return nil, err
	}
	return kustomize(map[string]map[string][]byte{readerDir: files}, readerDir)
}

// BuildForeign makes those of the exporter, in the cluster of the reader.
func BuildForeign(f Foreign) ([]*unstructured.Unstructured, error) {
	files, err := ForeignOverlay(f, "../deploy")
	if err != nil {
		return nil, err
	}
	objects, err := kustomize(map[string]map[string][]byte{foreignDir: files}, foreignDir)
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		if o.GetKind() == "Namespace" {
			labels := o.GetLabels()
			labels[ForeignLabel] = f.Parts
			o.SetLabels(labels)
		}
	}
	return objects, nil
}
