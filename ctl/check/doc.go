// Package check finds the faults of a certificate, a name, a clock, a port, the DNS or Calico's pools, before or while
// two clusters are connected.
//
// command.go, gather*.go and probe.go collect facts (files, a Workload API, a connection, objects of a cluster) and do
// not judge; judge.go, dns.go, calico.go, policies.go and policykeys.go turn facts into findings and have no effects.
// plan*.go compute the cost of a mesh before there is one, without a cluster: memory, processor and traffic of each
// part, objects and peers, and the limits to raise. All clusters count as alike, linked each to each other, with all
// features.
package check

import (
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Own is the certificate that a part shows to others.
type Own struct {
	// CertFile and KeyFile are its files; a Workload API's address in both.
	CertFile, KeyFile string
	// Want is the ID that it must have; the zero ID for any.
	Want spiffeid.ID
	// Certs is the chain, the part's own first, unless CertErr says why there is none.
	Certs   []*x509.Certificate
	CertErr error
	// KeyErr is why the key cannot be used with the certificate; nil if it can.
	KeyErr error
	// KeyOpen is set if others than its owner and group may read the key's file.
	KeyOpen bool
	// Fix is the command that makes a new one.
	Fix string
}

type Bundle struct {
	Cluster, File string
	Roots         []*x509.Certificate
	// Err is why there are none; fs.ErrNotExist if the file does not exist.
	Err error
}

type Dialled struct {
	Address string
	Expect  spiffeid.ID
	// From is the cluster that dialled, as far as known.
	From string
	// ResolveErr, ConnectErr and HandshakeErr: the first that is not nil is where the connection failed.
	ResolveErr, ConnectErr, HandshakeErr error
	// Version of TLS, such as tls.VersionTLS13.
	Version uint16
	Certs   []*x509.Certificate
	// Showed is set if we had a certificate to show. AfterErr is how the listener ended the connection once it had seen
	// ours, or nil if it did not.
	Showed   bool
	AfterErr error
	// Mutual is set if the listener asks clients for a certificate.
	Mutual bool
}

type Facts struct {
	Now     time.Time
	Own     []Own
	Roots   []Bundle
	Dialled []Dialled
	// ClockSynced is set if the kernel considers this machine's clock synchronised; ClockKnown if it answered.
	ClockSynced, ClockKnown bool
	// The fields below are nil if they are not checked.
	DNS        *DNS
	Calico     *Calico
	Policies   *Policies
	PolicyKeys *PolicyKeys
	// Configs are the configuration files that were read, and the RemoteClusters that are not accepted.
	Configs []Config
	// RemotesErr is why RemoteClusters are not checked; nil if they are, or if the part has none.
	RemotesErr error
}

func (f *Facts) listener(address string, expect spiffeid.ID) {
	f.Dialled = append(f.Dialled, Dialled{Address: address, Expect: expect})
}

// Fingerprint is the beginning of the SHA-256 of a certificate, enough to tell two apart.
func Fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return fmt.Sprintf("%x", sum[:8])
}

type Config struct {
	File string
	// Of is its owner, such as "of the broker of c1".
	Of string
	// Err is why it cannot be used, with a method Unwrap() []error for several reasons; nil if it can.
	Err error
}
