package check

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/kube-semaphore/semaphore/internal/identity"
)

const layout = "2006-01-02 15:04 MST"

// Judge is what is to be said of facts: the good too, so that it is seen what was looked at.
func Judge(f Facts) []Finding {
	var all []Finding
	if f.ConfigErr != nil {
		all = append(all, Finding{Code: "config-invalid", Level: Error, Subject: f.ConfigFile, Evidence: f.ConfigErr.Error(), Side: "here",
			Fix: "correct the keys that it names; docs/configuration.md has them all"})
	}
	bundles := map[string]Bundle{}
	for _, b := range f.Roots {
		bundles[b.Cluster] = b
		all = append(all, JudgeBundle(b, f.Now)...)
	}
	for _, own := range f.Own {
		all = append(all, JudgeOwn(own, bundles, f.Now)...)
	}
	for _, d := range f.Dialled {
		all = append(all, JudgeDialled(d, bundles, f.Now)...)
	}
	if f.DNS != nil {
		all = append(all, JudgeDNS(*f.DNS)...)
	}
	if f.Calico != nil {
		all = append(all, JudgeCalico(*f.Calico)...)
	}
	if f.Policies != nil {
		all = append(all, JudgePolicies(*f.Policies)...)
	}
	return append(all, judgeClock(f, all)...)
}

// judgeClock judges our own clock, where certificates are found that are out of their time: many machines have a
// clock that is right without the kernel knowing.
func judgeClock(f Facts, found []Finding) []Finding {
	for _, other := range found {
		if !strings.HasSuffix(other.Code, "-expired") && !strings.HasSuffix(other.Code, "-not-yet-valid") || !f.ClockKnown {
			continue
		}
		clock := Finding{Code: "clock", Level: OK, Subject: "this machine's clock", Evidence: fmt.Sprintf("it says %s, and the kernel holds it for synchronised: look at the other side's", f.Now.UTC().Format(layout))}
		if !f.ClockSynced {
			clock.Code, clock.Level, clock.Side, clock.Fix = "clock-not-synchronised", Warning, "here", "timedatectl set-ntp true"
			clock.Evidence = fmt.Sprintf("it says %s, and the kernel does not hold it for synchronised with any time server", f.Now.UTC().Format(layout))
		}
		return []Finding{clock}
	}
	return nil
}

// JudgeBundle judges the roots of one cluster.
func JudgeBundle(b Bundle, now time.Time) []Finding {
	fetch := fmt.Sprintf("in %s: semaphorectl pki bundle --dir DIR > %s.pem; here: semaphorectl pki secrets --dir DIR --peer-bundle %s=%s.pem | kubectl apply -f -",
		b.Cluster, b.Cluster, b.Cluster, b.Cluster)
	bad := func(code string, format string, args ...any) []Finding {
		return []Finding{{Code: code, Level: Error, Subject: b.File, Evidence: fmt.Sprintf(format, args...), Side: "here", Fix: fetch}}
	}
	switch {
	case b.Missing:
		return bad("bundle-missing", "there are no root certificates of %s, so that nobody of it is trusted", b.Cluster)
	case b.Err != nil:
		return bad("bundle-unreadable", "%v", b.Err)
	case len(b.Roots) == 0:
		return bad("bundle-unreadable", "it holds no certificate")
	}
	var all []Finding
	for _, root := range b.Roots {
		name := fmt.Sprintf("root %s of %s", Fingerprint(root), b.Cluster)
		if len(root.URIs) == 1 && root.URIs[0].Host != b.Cluster {
			all = append(all, Finding{Code: "bundle-of-another-cluster", Level: Error, Subject: b.File, Side: "here", Fix: fetch,
				Evidence: fmt.Sprintf("a root in it is that of %q", root.URIs[0].Host)})
			continue
		}
		if !root.IsCA {
			all = append(all, Finding{Code: "root-is-no-authority", Level: Error, Subject: b.File, Side: b.Cluster, Fix: fetch,
				Evidence: fmt.Sprintf("%s is no certificate of an authority: nothing that it signed is trusted", name)})
			continue
		}
		all = append(all, judgeTime("root", name, root, now, b.Cluster, "semaphorectl pki rotate-ca --dir DIR"))
	}
	return all
}

// judgeTime judges one certificate's time. Codes are kind-expired and so on.
func judgeTime(kind, subject string, cert *x509.Certificate, now time.Time, side, renew string) Finding {
	f := Finding{Code: kind, Level: OK, Subject: subject, Evidence: fmt.Sprintf("valid until %s, %s from now", cert.NotAfter.UTC().Format(layout), days(cert.NotAfter.Sub(now)))}
	err := identity.Validity(cert, now)
	life, left := cert.NotAfter.Sub(cert.NotBefore), cert.NotAfter.Sub(now)
	switch {
	case err != nil && now.Before(cert.NotBefore):
		// Whoever issues backdates, so that this is a clock and not a certificate.
		f.Code, f.Level, f.Evidence = kind+"-not-yet-valid", Error, err.Error()
		f.Side, f.Fix = "the side whose clock is wrong", "timedatectl status, on both sides"
	case err != nil:
		f.Code, f.Level, f.Evidence, f.Side, f.Fix = kind+"-expired", Error, err.Error(), side, renew
	case left < soon(life):
		f.Code, f.Level, f.Side, f.Fix = kind+"-expires-soon", Warning, side, renew
	}
	return f
}

// soon is when the end of a certificate is worth a warning: whoever renews them by a machine does it at a third
// of their life or earlier.
func soon(life time.Duration) time.Duration { return min(life/5, 30*24*time.Hour) }

func days(d time.Duration) string {
	if d < 48*time.Hour {
		return d.Round(time.Minute).String()
	}
	return fmt.Sprintf("%d days", int(d/(24*time.Hour)))
}

// JudgeOwn judges what a part shows to others.
func JudgeOwn(own Own, bundles map[string]Bundle, now time.Time) []Finding {
	bad := func(code, subject, fix string, format string, args ...any) Finding {
		return Finding{Code: code, Level: Error, Subject: subject, Evidence: fmt.Sprintf(format, args...), Side: "here", Fix: fix}
	}
	if own.CertErr != nil {
		return []Finding{bad("certificate-unreadable", own.CertFile, own.Fix, "%v", own.CertErr)}
	}
	cert := own.Certs[0]
	id, err := x509svid.IDFromCert(cert)
	if err != nil {
		return []Finding{bad("certificate-name", own.CertFile, own.Fix, "it bears no SPIFFE ID: %v", err)}
	}
	var all []Finding
	if !own.Want.IsZero() && id != own.Want {
		all = append(all, bad("certificate-name", own.CertFile, "mount the Secret of the part that this is, or correct the configuration's cluster",
			"it is that of %s, and it has to be %s", id, own.Want))
	}
	if own.KeyErr != nil {
		all = append(all, bad("key-unusable", own.KeyFile, own.Fix, "%v", own.KeyErr))
	}
	if own.KeyOpen {
		all = append(all, Finding{Code: "key-open", Level: Warning, Subject: own.KeyFile, Side: "here", Fix: "chmod 600 " + own.KeyFile,
			Evidence: "everyone on this machine may read it"})
	}
	all = append(all, judgeTime("certificate", id.String(), cert, now, "here", own.Fix))
	b, known := bundles[identity.ClusterOf(id)]
	switch err := chain(own.Certs, b, now); {
	case !known, len(b.Roots) == 0: // JudgeBundle says it
	case err != nil:
		all = append(all, bad("certificate-chain", own.CertFile, own.Fix, "%s; whoever trusts %s refuses it", err, b.File))
	}
	return all
}

// chain says why certificates are not trusted under a bundle, times apart.
func chain(certs []*x509.Certificate, b Bundle, now time.Time) error {
	td, err := x509svid.IDFromCert(certs[0])
	if err != nil {
		return err
	}
	// At a moment when the leaf is good: its time is a finding of its own.
	at := now
	if leaf := certs[0]; identity.Validity(leaf, now) != nil {
		at = leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) / 2)
	}
	_, _, err = x509svid.Verify(certs, x509bundle.FromX509Authorities(td.TrustDomain(), b.Roots), x509svid.WithTime(at))
	var unknown x509.UnknownAuthorityError
	if errors.As(err, &unknown) {
		var have []string
		for _, r := range b.Roots {
			have = append(have, fmt.Sprintf("%x", r.SubjectKeyId))
		}
		return fmt.Errorf("no root that is trusted for %s signed it: it is of the key %x (%s), trusted are %s",
			td.TrustDomain().Name(), certs[len(certs)-1].AuthorityKeyId, certs[len(certs)-1].Issuer.CommonName, strings.Join(have, ", "))
	}
	return err
}

// JudgeDialled judges a connection: name, port, TLS, who is there, and what they make of us.
func JudgeDialled(d Dialled, bundles map[string]Bundle, now time.Time) []Finding {
	there := d.Expect.TrustDomain().Name()
	from := d.From
	if from == "" {
		from = "here"
	}
	bad := func(code, side, fix, format string, args ...any) []Finding {
		return []Finding{{Code: code, Level: Error, Subject: d.Address, Evidence: fmt.Sprintf(format, args...), Side: side, Fix: fix}}
	}
	service := fmt.Sprintf("in %s: kubectl -n semaphore get service,pods", there)
	switch {
	case d.ResolveErr != nil:
		return bad("address-unknown", from, "correct the address in the exporter's configuration, or its DNS entry", "no address: %v", d.ResolveErr)
	case errors.Is(d.ConnectErr, syscall.ECONNREFUSED):
		return bad("port-closed", there, service, "the machine answers and nothing listens: %v", d.ConnectErr)
	case d.ConnectErr != nil && isTimeout(d.ConnectErr):
		return bad("port-unreachable", "network", "open the port between the clusters; docs/install.md has the list",
			"no answer: a firewall, a wrong address, or no route: %v", d.ConnectErr)
	case d.ConnectErr != nil:
		return bad("port-unreachable", "network", "open the port between the clusters; docs/install.md has the list", "%v", d.ConnectErr)
	case d.HandshakeErr != nil:
		return judgeHandshake(d, there, service)
	}
	var all []Finding
	if d.Version < tls.VersionTLS13 {
		return bad("tls-old", there, service, "it speaks %s at most, so that it is no part of semaphore (which wants TLS 1.3)", tls.VersionName(d.Version))
	}
	all = append(all, judgePeer(d, bundles, there, now)...)
	if f, ok := judgeAnswer(d, there, from); ok {
		all = append(all, f)
	}
	return all
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &n) && n.Timeout()
}

func judgeHandshake(d Dialled, there, service string) []Finding {
	f := Finding{Level: Error, Subject: d.Address, Side: there, Fix: service}
	var record tls.RecordHeaderError
	switch {
	case errors.As(d.HandshakeErr, &record):
		f.Code, f.Evidence = "not-tls", fmt.Sprintf("something answers that does not speak TLS: another service has this port (%v)", d.HandshakeErr)
	case isTimeout(d.HandshakeErr):
		f.Code, f.Evidence = "tls-silent", "the port is open and nothing answers TLS: a load balancer without a pod behind it, or a service that waits for its caller to speak first"
	case errors.Is(d.HandshakeErr, io.EOF), errors.Is(d.HandshakeErr, syscall.ECONNRESET):
		f.Code, f.Evidence = "tls-cut", fmt.Sprintf("the connection is cut before TLS is agreed on: a load balancer without a pod behind it, or a firewall (%v)", d.HandshakeErr)
	case strings.Contains(d.HandshakeErr.Error(), "protocol version"):
		f.Code, f.Evidence = "tls-old", fmt.Sprintf("it speaks no TLS of this age, so that it is no part of semaphore: %v", d.HandshakeErr)
	default:
		f.Code, f.Evidence = "tls-failed", d.HandshakeErr.Error()
	}
	return []Finding{f}
}

// judgePeer judges the certificate that a listener showed.
func judgePeer(d Dialled, bundles map[string]Bundle, there string, now time.Time) []Finding {
	if len(d.Certs) == 0 {
		return []Finding{{Code: "peer-name", Level: Error, Subject: d.Address, Evidence: "it shows no certificate", Side: there, Fix: "correct the address"}}
	}
	id, err := x509svid.IDFromCert(d.Certs[0])
	if err != nil {
		return []Finding{{Code: "peer-name", Level: Error, Subject: d.Address, Side: there, Fix: "correct the address, in the exporter's configuration",
			Evidence: fmt.Sprintf("its certificate (%s) bears no SPIFFE ID, so that it is no part of semaphore: %v", d.Certs[0].Subject, err)}}
	}
	var all []Finding
	if id != d.Expect {
		all = append(all, Finding{Code: "peer-name", Level: Error, Subject: d.Address, Side: "here", Fix: "correct the address or the cluster's name, in the exporter's configuration",
			Evidence: fmt.Sprintf("%s is there, and %s is expected", id, d.Expect)})
	}
	subject := id.String() + " at " + d.Address
	all = append(all, judgeTime("peer", subject, d.Certs[0], now, there, "in "+there+": semaphorectl pki rotate --dir DIR"))
	b, known := bundles[identity.ClusterOf(id)]
	switch err := chain(d.Certs, b, now); {
	case len(bundles) == 0 && !d.Showed: // an address alone was given
		all = append(all, Finding{Code: "peer-not-verified", Level: Warning, Subject: subject, Side: "here", Evidence: "no root certificates were given to verify it with",
			Fix: "give --config, --dir or --tls-dir"})
	case !known:
		all = append(all, Finding{Code: "peer-untrusted", Level: Error, Subject: subject, Side: "here", Evidence: fmt.Sprintf("no root certificates of %s are known here", identity.ClusterOf(id)),
			Fix: fmt.Sprintf("take the bundle of %s (semaphorectl pki bundle, there), and give it to semaphorectl pki secrets --peer-bundle", identity.ClusterOf(id))})
	case len(b.Roots) == 0: // JudgeBundle says it
	case err != nil:
		all = append(all, Finding{Code: "peer-untrusted", Level: Error, Subject: subject, Side: "here", Evidence: err.Error(),
			Fix: fmt.Sprintf("take the bundle of %s anew (semaphorectl pki bundle, there): compare it with %s", there, b.File)})
	}
	return all
}

// judgeAnswer judges how the listener took our certificate.
func judgeAnswer(d Dialled, there, from string) (Finding, bool) {
	f := Finding{Subject: d.Address, Side: there}
	logs := fmt.Sprintf("in %s: kubectl -n semaphore logs deploy/semaphore-%s | grep refused", there, strings.TrimPrefix(d.Expect.Path(), "/"))
	switch {
	case d.AfterErr == nil && (d.Showed || !d.Mutual):
		f.Code, f.Level, f.Side, f.Evidence = "connection", OK, "", "TLS 1.3 is agreed on"
		if d.Mutual {
			f.Evidence += ", and our certificate is taken"
		}
	case !d.Showed:
		f.Code, f.Level, f.Side = "not-shown", Warning, from
		f.Evidence = "no certificate was shown to it, so that it is not known what it makes of ours"
		f.Fix = "give --tls-dir, --dir or --config"
	case isTimeout(d.AfterErr):
		f.Code, f.Level, f.Evidence, f.Fix = "silent-after-tls", Warning, "it agreed on TLS, and says nothing since", logs
	default:
		f.Code, f.Level, f.Fix = "refused-by-peer", Error, logs
		f.Evidence = fmt.Sprintf("it refuses our certificate, and TLS lets it say no more than %q: the reason is in its log. Usual are: it has no or another bundle of %s, it does not list %s, or the clocks differ", d.AfterErr, from, from)
	}
	return f, true
}
