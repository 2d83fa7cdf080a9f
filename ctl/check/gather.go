package check

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/internal/volume"
)

// ReadOwn reads a certificate and its key. certificate is nil if they cannot be used together.
func ReadOwn(certFile, keyFile string, want spiffeid.ID, fix string) (own Own, certificate *tls.Certificate) {
	own = Own{CertFile: certFile, KeyFile: keyFile, Want: want, Fix: fix}
	certPEM, err := volume.ReadFile(certFile)
	if err != nil {
		own.CertErr = err
		return own, nil
	}
	// The pair of one version, even if a rotation happens meanwhile.
	pair, err := volume.Read(certFile, keyFile)
	if err == nil {
		certPEM = pair[0]
	}
	if own.Certs, own.CertErr = parseCertificates(certPEM); own.CertErr != nil {
		return own, nil
	}
	if err != nil {
		own.KeyErr = err
		return own, nil
	}
	if info, err := os.Stat(keyFile); err == nil {
		own.KeyOpen = info.Mode().Perm()&0o004 != 0
	}
	certified, err := tls.X509KeyPair(pair[0], pair[1])
	if err != nil {
		own.KeyErr = fmt.Errorf("it is not the key of %s: %w", certFile, err)
		return own, nil
	}
	return own, &certified
}

func parseCertificates(text []byte) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		all = append(all, cert)
	}
	if len(all) == 0 {
		return nil, errors.New("it holds no PEM certificate")
	}
	return all, nil
}

func ReadBundle(cluster, file string) Bundle {
	text, err := volume.ReadFile(file)
	if err != nil {
		return Bundle{Cluster: cluster, File: file, Err: err}
	}
	return ParseBundle(cluster, file, text)
}

// ParseBundle returns the roots of a cluster that a text has; from says where the text is from.
func ParseBundle(cluster, from string, text []byte) Bundle {
	b := Bundle{Cluster: cluster, File: from}
	b.Roots, b.Err = parseCertificates(text)
	return b
}

func (f *Facts) ofAgent(ctx context.Context, c *config.Agent) {
	if c.Broker.WorkloadAPI == "" {
		f.Roots = append(f.Roots, ReadBundle(c.Cluster, c.Broker.BundleFile))
	} else {
		f.askWorkloadAPI(ctx, c.Broker.WorkloadAPI, spiffeid.ID{}, []string{c.Cluster})
	}
	f.listener(c.Broker.Address, identity.Broker(c.Cluster))
}

// identity adds a part's own certificate and the roots of clusters from files or a Workload API, and returns the
// certificate to show to a listener; nil for none. bundles are the roots of RemoteClusters, in place of others.
func (f *Facts) identity(ctx context.Context, from config.TLS, own spiffeid.ID, clusters []string,
	bundles map[string]string) *tls.Certificate {
	clusters = slices.DeleteFunc(clusters, func(name string) bool {
		text, ok := bundles[name]
		if ok {
			f.Roots = append(f.Roots, ParseBundle(name, "RemoteCluster "+name, []byte(text)))
		}
		return ok
	})
	if from.WorkloadAPI != "" {
		return f.askWorkloadAPI(ctx, from.WorkloadAPI, own, clusters)
	}
	found, pair := ReadOwn(from.CertFile, from.KeyFile, own,
		"semaphorectl pki rotate --dir DIR, then semaphorectl pki secrets")
	// A mounted Secret can be read by everything that runs in the pod, which is only the part.
	found.KeyOpen = false
	f.Own = append(f.Own, found)
	for _, name := range clusters {
		f.Roots = append(f.Roots, ReadBundle(name, filepath.Join(from.BundleDir, name+".pem")))
	}
	return pair
}

// askWorkloadAPI adds a part's certificate and the roots of clusters from a Workload API, and returns the certificate;
// nil for none.
func (f *Facts) askWorkloadAPI(ctx context.Context, address string, want spiffeid.ID,
	clusters []string) *tls.Certificate {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	own := Own{CertFile: address, KeyFile: address, Want: want,
		Fix: "spire-server entry show; see docs/certificates.md for what an entry has to have"}
	given, err := workloadapi.FetchX509Context(ctx, workloadapi.WithAddr(address))
	if err != nil {
		own.CertErr = fmt.Errorf("the Workload API gives no certificate: %w", err)
		f.Own = append(f.Own, own)
		return nil
	}
	svid := given.DefaultSVID()
	for _, s := range given.SVIDs {
		if s.ID == want {
			svid = s
		}
	}
	own.Certs = svid.Certificates
	f.Own = append(f.Own, own)
	certificate := &tls.Certificate{PrivateKey: svid.PrivateKey, Leaf: svid.Certificates[0]}
	for _, c := range svid.Certificates {
		certificate.Certificate = append(certificate.Certificate, c.Raw)
	}
	for _, cluster := range clusters {
		b := Bundle{Cluster: cluster, File: address}
		td, err := spiffeid.TrustDomainFromString(cluster)
		if err != nil {
			b.Err = err
		} else if bundle, ok := given.Bundles.Get(td); ok {
			b.Roots = bundle.X509Authorities()
		} else {
			b.Err = fs.ErrNotExist
		}
		f.Roots = append(f.Roots, b)
	}
	return certificate
}
