package identity

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// CheckValidity returns nil if now is within a certificate's validity, and otherwise an error with the times of the
// issuer's clock and ours. Neither side can know which of the clocks is wrong.
func CheckValidity(cert *x509.Certificate, now time.Time) error {
	const layout = "2006-01-02 15:04:05 MST"
	span := fmt.Sprintf("valid from %s to %s, and our clock says %s",
		cert.NotBefore.UTC().Format(layout), cert.NotAfter.UTC().Format(layout), now.UTC().Format(layout))
	switch {
	case now.Before(cert.NotBefore):
		return fmt.Errorf("%s is not yet valid, for another %s: it is %s: one of the two clocks is wrong, compare both "+
			"with a time server", nameOf(cert), cert.NotBefore.Sub(now).Round(time.Second), span)
	case now.After(cert.NotAfter):
		return fmt.Errorf("%s has expired %s ago: it is %s: issue a new one (semaphorectl pki rotate), or set our clock "+
			"right", nameOf(cert), now.Sub(cert.NotAfter).Round(time.Second), span)
	}
	return nil
}

// nameOf describes whose certificate it is, as far as the certificate says so.
func nameOf(cert *x509.Certificate) string {
	switch {
	case cert.IsCA && len(cert.URIs) == 1:
		return fmt.Sprintf("the root certificate of %q", cert.URIs[0].Host)
	case cert.IsCA:
		return fmt.Sprintf("the root certificate %q", cert.Subject.CommonName)
	}
	id, err := x509svid.IDFromCert(cert)
	if err != nil {
		return "the certificate"
	}
	return "the certificate of " + id.String()
}

// explained puts the times of both clocks before an error that a certificate's validity caused.
func explained(err error, now time.Time) error {
	invalid, is := errors.AsType[x509.CertificateInvalidError](err)
	if is && invalid.Reason == x509.Expired && invalid.Cert != nil {
		if clocks := CheckValidity(invalid.Cert, now); clocks != nil {
			return fmt.Errorf("%w (%w)", clocks, err)
		}
	}
	return err
}

// Refused adds to the error of a stream which certificate we showed, if it is the reason for the end of the stream, or
// may be: TLS sends no more than an alert (RFC 8446, 6.2), and if the other end hangs up first not even that arrives.
// The reason is in the other end's log.
func (s *Source) Refused(err error) error {
	if err == nil {
		return nil
	}
	svid, ownErr := s.GetX509SVID()
	if ownErr != nil {
		return fmt.Errorf("%w; we have no certificate to show: %w", err, ownErr)
	}
	cert, now := svid.Certificates[0], time.Now()
	if clocks := CheckValidity(cert, now); clocks != nil {
		return fmt.Errorf("the other end may refuse our certificate: %w (%w)", clocks, err)
	}
	// gRPC passes on the text of an error and not the error.
	if !strings.Contains(err.Error(), "remote error: tls:") {
		return err
	}
	return fmt.Errorf("the other end refuses our certificate, %s, valid from %s to %s while our clock says %s; its log "+
		"says why (%w)",
		svid.ID, cert.NotBefore.UTC().Format(time.RFC3339), cert.NotAfter.UTC().Format(time.RFC3339),
		now.UTC().Format(time.RFC3339), err)
}

// logRefused logs whom a listener refused, and why. The bounds of a part's log hold for each host.
func logRefused(from net.Addr, raw [][]byte, err error) {
	host, _, splitErr := net.SplitHostPort(from.String())
	if splitErr != nil {
		host = from.String()
	}
	slog.Warn("a caller's certificate is refused", "from", host, "names", claimed(raw), "error", err)
}

// claimed returns whom an unproven certificate names, for the log.
func claimed(raw [][]byte) string {
	if len(raw) == 0 {
		return "nobody"
	}
	if cert, err := x509.ParseCertificate(raw[0]); err == nil {
		if id, err := x509svid.IDFromCert(cert); err == nil {
			return id.String()
		}
	}
	return "nobody"
}
