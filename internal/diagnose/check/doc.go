// Package check says in words what is wrong with a certificate, a name, a clock, a port, the DNS or Calico's pools, before or while
// two clusters are linked.
//
// gather.go and probe.go collect facts (files, a Workload API, a connection) and judge nothing; judge.go, dns.go and calico.go
// turn facts into findings and touch nothing. It knows certificates, TLS, Corefiles and IPPools, and neither Kubernetes nor a part.
//
// It imports internal/identity for IDs and certificates, internal/coredns for blocks and internal/volume.
package check

import (
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Level is how bad a finding is.
type Level string

// The levels.
const (
	// OK is what was looked at and is as it should be.
	OK Level = "ok"
	// Warning is what works now and will not for ever, or what is not seen to work.
	Warning Level = "warning"
	// Error is what keeps a link from being made.
	Error Level = "error"
)

// Finding is one thing that was found, good or bad.
type Finding struct {
	// Code is stable, for programs; docs/certificates.md lists them all.
	Code  string `json:"code"`
	Level Level  `json:"level"`
	// Subject is what was looked at: a file, a name, an address.
	Subject string `json:"subject"`
	// Evidence is what was seen, in words.
	Evidence string `json:"evidence"`
	// Side is who has to act: the name of a cluster, "network", or empty where nobody has to.
	Side string `json:"side,omitempty"`
	// Fix is one command, or one sentence where no command will do.
	Fix string `json:"fix,omitempty"`
}

// Own is what a part shows to others, as it was found.
type Own struct {
	// CertFile and KeyFile are where it was looked for; a Workload API's address in both.
	CertFile, KeyFile string
	// Part and Cluster are for whom, as far as it is known.
	Part, Cluster string
	// Want is the ID that it has to bear; the zero ID for any.
	Want spiffeid.ID
	// Certs is the chain, the part's own first, unless CertErr says why there is none.
	Certs   []*x509.Certificate
	CertErr error
	// KeyErr is why the key cannot be used with the certificate; nil when it can.
	KeyErr error
	// KeyOpen says that others than its owner and group may read the key's file.
	KeyOpen bool
	// Fix is how a new one is made.
	Fix string
}

// Bundle is the roots of one cluster, as they were found.
type Bundle struct {
	Cluster, File string
	Roots         []*x509.Certificate
	// Missing says that there is no such file; Err is what else is wrong with it.
	Missing bool
	Err     error
}

// Dialled is what became of a connection to a listener.
type Dialled struct {
	Address string
	// Expect is who should be there.
	Expect spiffeid.ID
	// From is the cluster that dialled, as far as it is known.
	From string
	// ResolveErr, ConnectErr and HandshakeErr are how far it came: the first that is not nil is where it ended.
	ResolveErr, ConnectErr, HandshakeErr error
	// Version is of TLS, such as tls.VersionTLS13.
	Version uint16
	// Certs is the chain that the listener showed.
	Certs []*x509.Certificate
	// Showed is whether we had a certificate to show. AfterErr is how the listener ended the connection once it
	// had seen ours, or nil when it went on.
	Showed   bool
	AfterErr error
	// Mutual says that the listener asks callers for a certificate.
	Mutual bool
}

// Facts is all that was collected.
type Facts struct {
	Now     time.Time
	Own     []Own
	Roots   []Bundle
	Dialled []Dialled
	// ClockSynced is whether the kernel holds this machine's clock for synchronised; ClockKnown that it said so.
	ClockSynced, ClockKnown bool
	// DNS is nil where the names of services are not looked at.
	DNS *DNS
	// Calico is nil where the cluster's is not looked at.
	Calico *Calico
	// Policies is nil where the cluster's are not looked at.
	Policies *Policies
	// ConfigErr is why a configuration file cannot be used; nil when it can or there is none.
	ConfigFile string
	ConfigErr  error
}

// Fingerprint is the beginning of the SHA-256 of a certificate, enough to tell two apart.
func Fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return fmt.Sprintf("%x", sum[:8])
}
