package kubetest

import (
	"crypto/rand"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/kube-semaphore/semaphore/test/testbed/authority"
)

// frontProxy is the name of the client certificate that the apiserver presents to aggregated API servers.
const frontProxy = "front-proxy"

// pki has the certificates and keys of one apiserver, and the token of its administrator. A tenth of what an apiserver
// computes would verify a client certificate with each request.
type pki struct {
	ca, serverCert, serverKey, proxyCert, proxyKey, serviceAccountKey, tokens string // files

	caPEM []byte
	admin string
}

func newPKI(dir string) (*pki, error) {
	ca, err := authority.New("kubetest")
	if err != nil {
		return nil, err
	}
	server, err := ca.Server([]string{"localhost"}, []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})})
	if err != nil {
		return nil, err
	}
	proxy, err := ca.Client(frontProxy)
	if err != nil {
		return nil, err
	}
	accountKey, err := authority.Key()
	if err != nil {
		return nil, err
	}
	p := &pki{
		ca:                filepath.Join(dir, "ca.crt"),
		serverCert:        filepath.Join(dir, "server.crt"),
		serverKey:         filepath.Join(dir, "server.key"),
		proxyCert:         filepath.Join(dir, "proxy.crt"),
		proxyKey:          filepath.Join(dir, "proxy.key"),
		serviceAccountKey: filepath.Join(dir, "service-account.key"),
		tokens:            filepath.Join(dir, "tokens.csv"),
		caPEM:             ca.Cert,
		admin:             rand.Text(),
	}
	for path, content := range map[string][]byte{
		p.ca: ca.Cert, p.serverCert: server.Cert, p.serverKey: server.Key,
		p.proxyCert: proxy.Cert, p.proxyKey: proxy.Key, p.serviceAccountKey: accountKey,
		p.tokens: []byte(p.admin + `,kubetest-admin,kubetest-admin,"system:masters"` + "\n"),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return nil, err
		}
	}
	return p, nil
}
