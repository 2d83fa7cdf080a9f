package apply

import (
	"path"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/types"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Names of the objects that read a cluster in which nothing of semaphore runs (deploy/reader, deploy/foreign-exporter).
const (
	// ReaderNamespace is the namespace of the ServiceAccounts in the cluster that is read.
	ReaderNamespace = "semaphore-reader"
	// ReaderSecret is the Secret with the token and the apiserver's roots, beside the exporter.
	ReaderSecret = "semaphore-reader"
	// ForeignLabel is the label of the namespace of an exporter for another cluster. Its value is the namespace of the
	// broker beside which the exporter runs.
	ForeignLabel = "semaphore.uw.io/exporter-beside"

	readerDir      = "/reader"
	foreignDir     = "/foreign"
	readerMount    = "/etc/semaphore/reader/"
	federationPort = ":8443"
)

// Foreign describes an exporter that reads another cluster, and runs beside the broker of the reader's cluster.
type Foreign struct {
	// Cluster is the name of the cluster that is read, and Reader that of the cluster in which the exporter runs.
	Cluster, Reader string
	// Parts is the namespace of the reader's broker.
	Parts    string
	Features config.Features
	// Image has the form of Wishes.Image.
	Image string
	// APIURL is the https URL of the apiserver that is read. Without Roots, the root certificates of the image verify
	// it.
	APIURL string
	Roots  bool
	// Components are directories of deploy/features.
	Components []string
}

// Namespace returns the namespace of the exporter, in the reader's cluster.
func (f Foreign) Namespace() string { return naming.ForeignNamespace(f.Cluster) }

// ReaderName returns the name of the ServiceAccount, and of its Secret, in the cluster that is read.
func (f Foreign) ReaderName() string { return "semaphore-reader-" + f.Reader }

// ReaderOverlay returns the files of the overlay, as a person would write it, for the cluster that is read. It fails as
// Overlay does.
func ReaderOverlay(f Foreign, manifests string) (map[string][]byte, error) {
	k := types.Kustomization{TypeMeta: kustomizationType, Resources: []string{path.Join(manifests, "reader")},
		NameSuffix: "-" + f.Reader}
	for _, feature := range f.Features {
		k.Components = append(k.Components, path.Join(manifests, "reader", string(feature)))
	}
	return encoded(map[string]any{"kustomization.yaml": k})
}

// ForeignOverlay returns the files of the overlay, as a person would write it, for the exporter. It fails as Overlay
// does.
func ForeignOverlay(f Foreign, manifests string) (map[string][]byte, error) {
	kube := map[string]any{"remoteAPIURL": f.APIURL, "remoteSATokenPath": readerMount + "token"}
	if f.Roots {
		kube["remoteCAPath"] = readerMount + "ca.crt"
	}
	exporter := map[string]any{
		"cluster": f.Cluster, "features": f.Features, "events": false, "kube": kube,
		"localBroker": map[string]any{"cluster": f.Reader,
			"address": "semaphore-broker-federation." + f.Parts + ".svc" + federationPort},
	}
	k := types.Kustomization{TypeMeta: kustomizationType, Namespace: f.Namespace(), Images: imagesOf(f.Image),
		Resources: []string{path.Join(manifests, "foreign-exporter")},
		ConfigMapGenerator: []types.ConfigMapArgs{
			configMap("semaphore-exporter", "merge", []string{"config.yaml=exporter.yaml"}, nil)}}
	for _, c := range f.Components {
		k.Components = append(k.Components, path.Join(manifests, "features", c))
	}
	return encoded(map[string]any{"kustomization.yaml": k, "exporter.yaml": exporter})
}

// BuildReader builds the objects for the cluster that is read. It fails as Build does.
func BuildReader(f Foreign) ([]*unstructured.Unstructured, error) {
	files, err := ReaderOverlay(f, "../deploy")
	if err != nil {
		return nil, err
	}
	return kustomize(map[string]map[string][]byte{readerDir: files}, readerDir)
}

// BuildForeign builds the objects of the exporter, for the reader's cluster. It fails as Build does.
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
