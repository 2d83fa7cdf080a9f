package kubetest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// pki is what one apiserver and its administrator prove themselves with.
type pki struct {
	ca, serverCert, serverKey, serviceAccountKey string // files
	caPEM, adminCertPEM, adminKeyPEM             []byte
}

func newPKI(dir string) (*pki, error) {
	p := &pki{
		ca:                filepath.Join(dir, "ca.crt"),
		serverCert:        filepath.Join(dir, "server.crt"),
		serverKey:         filepath.Join(dir, "server.key"),
		serviceAccountKey: filepath.Join(dir, "service-account.key"),
	}
	caTemplate := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubetest"},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caKey, err := newKey()
	if err != nil {
		return nil, err
	}
	if p.caPEM, err = sign(caTemplate, caTemplate, caKey.Public(), caKey); err != nil {
		return nil, err
	}
	leaf := func(serial int64, name pkix.Name, usage x509.ExtKeyUsage) (cert, key []byte, err error) {
		k, err := newKey()
		if err != nil {
			return nil, nil, err
		}
		cert, err = sign(&x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: name,
			NotBefore: caTemplate.NotBefore, NotAfter: caTemplate.NotAfter,
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		}, caTemplate, k.Public(), caKey)
		if err != nil {
			return nil, nil, err
		}
		key, err = encodeKey(k)
		return cert, key, err
	}
	serverCert, serverKey, err := leaf(2, pkix.Name{CommonName: "kube-apiserver"}, x509.ExtKeyUsageServerAuth)
	if err != nil {
		return nil, err
	}
	admin := pkix.Name{CommonName: "kubetest-admin", Organization: []string{"system:masters"}}
	if p.adminCertPEM, p.adminKeyPEM, err = leaf(3, admin, x509.ExtKeyUsageClientAuth); err != nil {
		return nil, err
	}
	accountKey, err := newKey()
	if err != nil {
		return nil, err
	}
	accountKeyPEM, err := encodeKey(accountKey)
	if err != nil {
		return nil, err
	}
	for path, content := range map[string][]byte{
		p.ca: p.caPEM, p.serverCert: serverCert, p.serverKey: serverKey, p.serviceAccountKey: accountKeyPEM,
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) ([]byte, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", template.Subject.CommonName, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
