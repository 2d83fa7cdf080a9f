package identity

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/internal/config"
)

// BundlesConfigMap has the roots of the own cluster and of its peers, each as CLUSTER.pem.
const BundlesConfigMap = "semaphore-bundles"

// Secrets returns what a cluster's parts mount, as YAML for kubectl: a Secret for each of exporter, broker and
// semaphorectl, and the ConfigMap semaphore-bundles with the root certificates of the own cluster and of its peers
// (cluster name → PEM).
//
// It fails for what peers would refuse, such as a certificate without its key: applied, it would cut the link.
func Secrets(dir, namespace string, peers map[string][]byte, now time.Time) ([]byte, error) {
	cluster, own, err := Bundle(dir)
	if err != nil {
		return nil, err
	}
	bundles := map[string]string{cluster + ".pem": string(own)}
	for name, pem := range peers {
		data, err := PeerBundle(cluster, name, pem)
		if err != nil {
			return nil, err
		}
		bundles[name+".pem"] = string(data)
	}
	// Agents have this package, and not the types of Kubernetes, which would be a quarter of their program.
	object := func(kind, name string, data any) map[string]any {
		return map[string]any{"apiVersion": "v1", "kind": kind, "data": data,
			"metadata": map[string]string{"name": name, "namespace": namespace}}
	}
	objects := []map[string]any{object("ConfigMap", BundlesConfigMap, bundles)}
	for _, part := range Parts {
		files := map[string][]byte{}
		for _, file := range []string{certFile, keyFile} {
			data, err := os.ReadFile(filepath.Join(dir, part, file))
			if err != nil {
				return nil, fmt.Errorf("certificate of the %s: %w", part, err)
			}
			files[file] = data
		}
		if cert, err := ParseRoot(files[certFile]); err == nil {
			if err := CheckValidity(cert, now); err != nil {
				return nil, err
			}
		}
		if err := CheckCertificate(own, files[certFile], files[keyFile], cluster, part, now); err != nil {
			return nil, fmt.Errorf("certificate of the %s in %s cannot be used, replace it (semaphorectl pki rotate --dir "+
				"%s): %w", part, filepath.Join(dir, part), dir, err)
		}
		secret := object("Secret", SecretName(part), files)
		secret["type"] = "kubernetes.io/tls"
		objects = append(objects, secret)
	}
	var out bytes.Buffer
	for _, o := range objects {
		data, err := yaml.Marshal(o)
		if err != nil {
			return nil, err
		}
		out.WriteString("---\n")
		out.Write(data)
	}
	return out.Bytes(), nil
}

// PeerBundle returns the bundle of a peer, from the peer's text, in the form in which the cluster own mounts it. It
// refuses a bundle of another cluster, or of none.
func PeerBundle(own, name string, pem []byte) ([]byte, error) {
	if name == own {
		return nil, fmt.Errorf("bundle of %q: that is this cluster itself", name)
	}
	if err := config.ClusterName(name); err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	td, err := spiffeid.TrustDomainFromString(name)
	if err != nil {
		return nil, fmt.Errorf("bundle of %q: %w", name, err)
	}
	bundle, err := parseRoots(td, pem)
	if err != nil {
		return nil, fmt.Errorf("bundle of %q is not what `semaphorectl pki bundle` prints there: %w", name, err)
	}
	// A certificate of another cluster was given under the wrong name.
	for _, cert := range bundle.X509Authorities() {
		if len(cert.URIs) == 1 && cert.URIs[0].Host != name {
			return nil, fmt.Errorf("bundle of %q: its certificate is that of %q", name, cert.URIs[0].Host)
		}
	}
	// Encode it again, so that only certificates get into the ConfigMap, whatever the file contained.
	data, err := bundle.Marshal()
	if err != nil {
		return nil, fmt.Errorf("bundle of %q: %w", name, err)
	}
	return data, nil
}

// CheckCertificate returns an error that says why roots, PEM, do not prove at a time that a certificate with its key
// belongs to a part of a cluster.
func CheckCertificate(roots, cert, key []byte, cluster, part string, at time.Time) error {
	svid, err := x509svid.Parse(cert, key)
	if err != nil {
		return err
	}
	if want := IDOf(cluster, part); svid.ID != want {
		return fmt.Errorf("it belongs to %s, not to %s", svid.ID, want)
	}
	bundle, err := x509bundle.Parse(svid.ID.TrustDomain(), roots)
	if err != nil {
		return err
	}
	_, _, err = x509svid.Verify(svid.Certificates, bundle, x509svid.WithTime(at))
	return err
}

func SecretName(part string) string {
	if part == "semaphorectl" {
		return "semaphorectl-tls"
	}
	return "semaphore-" + part + "-tls"
}
