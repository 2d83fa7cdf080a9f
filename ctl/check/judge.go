package check

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/identity"
)

const layout = "2006-01-02 15:04 MST"

// errNoBroker is why the RemoteClusters of manifests are not checked.
var errNoBroker = errors.New("no valid configuration of a broker is beside them, by which they are judged")

// Judge returns findings about the facts, the good ones too, which show the extent of the check.
func Judge(f Facts) []show.Finding {
	var all []show.Finding
	for _, c := range f.Configs {
		all = append(all, judgeConfig(c)...)
	}
	if f.RemotesErr != nil {
		fix := "see that the apiserver answers, and that RBAC lets you list RemoteClusters and get the ConfigMap " +
			"semaphore-broker-remotes, or semaphore-exporter-remotes"
		switch {
		case errors.Is(f.RemotesErr, errNoBroker):
			fix = "give the ConfigMap of the broker to -f, too"
		case errors.Is(f.RemotesErr, rest.ErrNotInCluster):
			fix = "give --context or --kubeconfig of a user who may read them"
		}
		all = append(all, show.Found(finding.RemotesNotChecked, "here", "RemoteClusters", fix, "%v", f.RemotesErr))
	}
	bundles := map[string]Bundle{}
	for _, b := range f.Roots {
		bundles[b.Cluster] = b
		all = append(all, judgeBundle(b, f.Now)...)
	}
	for _, own := range f.Own {
		all = append(all, judgeOwn(own, bundles, f.Now)...)
	}
	all = append(all, judgeAllDialled(f.Dialled, bundles, f.Now)...)
	if f.DNS != nil {
		all = append(all, judgeDNS(*f.DNS)...)
	}
	if f.Calico != nil {
		all = append(all, judgeCalico(*f.Calico)...)
	}
	if f.Policies != nil {
		all = append(all, judgePolicies(*f.Policies)...)
	}
	if f.PolicyKeys != nil {
		all = append(all, judgePolicyKeys(*f.PolicyKeys)...)
	}
	return append(all, judgeClock(f, all)...)
}

// judgeConfig judges a configuration file: one finding for each fault.
func judgeConfig(c Config) []show.Finding {
	if c.Err == nil {
		return []show.Finding{show.Found(finding.ConfigValid, "", c.File, "", "the configuration %s is valid", c.Of)}
	}
	wrong := []error{c.Err}
	if several, ok := c.Err.(interface{ Unwrap() []error }); ok {
		wrong = several.Unwrap()
	}
	var all []show.Finding
	for _, err := range wrong {
		fix := "correct the key that it names; docs/configuration.md has them all"
		if strings.HasPrefix(err.Error(), `cluster: ""`) {
			fix = "name the cluster in the file, or by --cluster where an overlay adds it"
		} else if strings.HasPrefix(err.Error(), "spec.") {
			fix = "correct the field that it names; docs/remotes.md has them all"
		}
		all = append(all, show.Found(finding.ConfigInvalid, "here", c.File, fix, "%v", err))
	}
	return all
}

var validities = []finding.Validity{finding.Certificate, finding.Root, finding.ListenerCertificate}

// judgeClock judges our own clock if certificates are not valid now: many clocks are right although the kernel does not
// know it.
func judgeClock(f Facts, found []show.Finding) []show.Finding {
	if !f.ClockKnown || !slices.ContainsFunc(found, func(other show.Finding) bool {
		return slices.ContainsFunc(validities, func(v finding.Validity) bool {
			return other.Code == v.Expired || other.Code == v.NotYet
		})
	}) {
		return nil
	}
	now := f.Now.UTC().Format(layout)
	const subject = "this machine's clock"
	if f.ClockSynced {
		return []show.Finding{show.Found(finding.ClockSynchronised, "", subject, "",
			"it says %s, and the kernel considers it synchronised: check the other side's", now)}
	}
	return []show.Finding{show.Found(finding.ClockNotSynchronised, "here", subject, "timedatectl set-ntp true",
		"it says %s, and the kernel does not consider it synchronised with any time server", now)}
}

func judgeBundle(b Bundle, now time.Time) []show.Finding {
	fetch := fmt.Sprintf("in %s: semaphorectl pki bundle --dir DIR > %s.pem; here: semaphorectl pki secrets --dir DIR "+
		"--peer-bundle %s=%s.pem | kubectl apply -f -",
		b.Cluster, b.Cluster, b.Cluster, b.Cluster)
	bad := func(code finding.Code, format string, args ...any) []show.Finding {
		return []show.Finding{show.Found(code, "here", b.File, fetch, format, args...)}
	}
	switch {
	case errors.Is(b.Err, fs.ErrNotExist):
		return bad(finding.BundleMissing, "there are no root certificates of %s, so that no part of it is trusted",
			b.Cluster)
	case b.Err != nil:
		return bad(finding.BundleUnreadable, "%v", b.Err)
	case len(b.Roots) == 0:
		return bad(finding.BundleUnreadable, "it holds no certificate")
	}
	var all []show.Finding
	for _, root := range b.Roots {
		name := fmt.Sprintf("root %s of %s", Fingerprint(root), b.Cluster)
		if len(root.URIs) == 1 && root.URIs[0].Host != b.Cluster {
			all = append(all, bad(finding.BundleOfAnotherCluster, "a root in it is that of %q", root.URIs[0].Host)...)
			continue
		}
		if !root.IsCA {
			all = append(all, show.Found(finding.RootIsNoAuthority, b.Cluster, b.File, fetch,
				"%s is no certificate of an authority: nothing that it signed is trusted", name))
			continue
		}
		all = append(all, judgeTime(finding.Root, name, root, now, b.Cluster, "semaphorectl pki rotate-ca --dir DIR"))
	}
	return all
}

func judgeTime(kind finding.Validity, subject string, cert *x509.Certificate, now time.Time, side,
	renew string) show.Finding {
	err := identity.CheckValidity(cert, now)
	life, left := cert.NotAfter.Sub(cert.NotBefore), cert.NotAfter.Sub(now)
	until := fmt.Sprintf("valid until %s, %s from now", cert.NotAfter.UTC().Format(layout), days(left))
	switch {
	case err != nil && now.Before(cert.NotBefore):
		// Issuers backdate certificates, so that the fault is a clock and not the certificate.
		return show.Found(kind.NotYet, "the side whose clock is wrong", subject, "timedatectl status, on both sides", "%v",
			err)
	case err != nil:
		return show.Found(kind.Expired, side, subject, renew, "%v", err)
	case left < soon(life):
		return show.Found(kind.ExpiresSoon, side, subject, renew, "%s", until)
	}
	return show.Found(kind.Good, "", subject, "", "%s", until)
}

// soon is when the end of a certificate is worth a warning: automatic renewal happens at a third of the life or
// earlier.
func soon(life time.Duration) time.Duration { return min(life/5, 30*24*time.Hour) }

func days(d time.Duration) string {
	if d < 48*time.Hour {
		return d.Round(time.Minute).String()
	}
	return fmt.Sprintf("%d days", int(d/(24*time.Hour)))
}

func judgeOwn(own Own, bundles map[string]Bundle, now time.Time) []show.Finding {
	bad := func(code finding.Code, subject, fix, format string, args ...any) show.Finding {
		return show.Found(code, "here", subject, fix, format, args...)
	}
	if own.CertErr != nil {
		return []show.Finding{bad(finding.CertificateUnreadable, own.CertFile, own.Fix, "%v", own.CertErr)}
	}
	cert := own.Certs[0]
	id, err := x509svid.IDFromCert(cert)
	if err != nil {
		return []show.Finding{bad(finding.CertificateNameWrong, own.CertFile, own.Fix, "it has no SPIFFE ID: %v", err)}
	}
	var all []show.Finding
	if !own.Want.IsZero() && id != own.Want {
		all = append(all, bad(finding.CertificateNameWrong, own.CertFile,
			"mount the Secret of the part that this is, or correct the configuration's cluster",
			"it belongs to %s, and it must be %s", id, own.Want))
	}
	if own.KeyErr != nil {
		all = append(all, bad(finding.KeyUnusable, own.KeyFile, own.Fix, "%v", own.KeyErr))
	}
	if own.KeyOpen {
		all = append(all, bad(finding.KeyOpen, own.KeyFile, "chmod 600 "+own.KeyFile,
			"everyone on this machine may read it"))
	}
	all = append(all, judgeTime(finding.Certificate, id.String(), cert, now, "here", own.Fix))
	b, known := bundles[identity.ClusterOf(id)]
	switch err := chain(own.Certs, b, now); {
	case !known, len(b.Roots) == 0: // judgeBundle reports it
	case err != nil:
		all = append(all, bad(finding.CertificateUntrusted, own.CertFile, own.Fix,
			"%s; every cluster that trusts %s refuses it",
			err, b.File))
	}
	return all
}

// chain returns why certificates are not trusted under a bundle, apart from their validity in time.
func chain(certs []*x509.Certificate, b Bundle, now time.Time) error {
	td, err := x509svid.IDFromCert(certs[0])
	if err != nil {
		return err
	}
	// Verify at a time when the leaf is valid: its validity is a finding of its own.
	at := now
	if leaf := certs[0]; identity.CheckValidity(leaf, now) != nil {
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
			td.TrustDomain().Name(), certs[len(certs)-1].AuthorityKeyId, certs[len(certs)-1].Issuer.CommonName,
			strings.Join(have, ", "))
	}
	return err
}

// judgeAllDialled judges all connections. An address that does not answer is no error if another of the same listener
// agrees: the exporter tries them in turn.
func judgeAllDialled(dialled []Dialled, bundles map[string]Bundle, now time.Time) []show.Finding {
	found, agreed := make([][]show.Finding, len(dialled)), map[spiffeid.ID]bool{}
	for i, d := range dialled {
		found[i] = judgeDialled(d, bundles, now)
		agreed[d.Expect] = agreed[d.Expect] || found[i][len(found[i])-1].Code == finding.ConnectionAgreed &&
			!slices.ContainsFunc(found[i], func(f show.Finding) bool { return f.Level == finding.Error })
	}
	for i, d := range dialled {
		if agreed[d.Expect] && cmp.Or(d.ResolveErr, d.ConnectErr, d.HandshakeErr) != nil {
			last := &found[i][len(found[i])-1]
			last.Level, last.Evidence = finding.Warning, last.Evidence+"; another address of it works"
		}
	}
	return slices.Concat(found...)
}

// judgeDialled judges a connection: name, port, TLS, identity of the listener, and whether it accepts our certificate.
func judgeDialled(d Dialled, bundles map[string]Bundle, now time.Time) []show.Finding {
	there := d.Expect.TrustDomain().Name()
	from := d.From
	if from == "" {
		from = "here"
	}
	bad := func(code finding.Code, side, fix, format string, args ...any) []show.Finding {
		return []show.Finding{show.Found(code, side, d.Address, fix, format, args...)}
	}
	service := fmt.Sprintf("semaphorectl status --context %[1]s; kubectl --context %[1]s -n semaphore get "+
		"service,endpointslice,pods", there)
	switch {
	case d.ResolveErr != nil:
		return bad(finding.AddressUnknown, from, "correct the address in the RemoteCluster or the exporter's configuration, "+
			"or its DNS entry", "no address: %v", d.ResolveErr)
	case errors.Is(d.ConnectErr, syscall.ECONNREFUSED):
		return bad(finding.PortClosed, there, service, "the machine answers and nothing listens: %v", d.ConnectErr)
	case d.ConnectErr != nil && isTimeout(d.ConnectErr):
		return bad(finding.PortUnreachable, "network", "open the port between the clusters; docs/install.md has the list",
			"no answer: a firewall, a wrong address, or no route: %v", d.ConnectErr)
	case d.ConnectErr != nil:
		return bad(finding.PortUnreachable, "network", "open the port between the clusters; docs/install.md has the list",
			"%v", d.ConnectErr)
	case d.HandshakeErr != nil:
		return judgeHandshake(d, there, service)
	}
	var all []show.Finding
	if d.Version < tls.VersionTLS13 {
		return bad(finding.TLSOld, there, service,
			"it speaks %s at most, so that it is no part of semaphore (which wants TLS 1.3)", tls.VersionName(d.Version))
	}
	all = append(all, judgePeer(d, bundles, there, now)...)
	return append(all, judgeAnswer(d, there, from))
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &n) && n.Timeout()
}

func judgeHandshake(d Dialled, there, service string) []show.Finding {
	bad := func(code finding.Code, format string, args ...any) []show.Finding {
		return []show.Finding{show.Found(code, there, d.Address, service, format, args...)}
	}
	var record tls.RecordHeaderError
	switch {
	case errors.As(d.HandshakeErr, &record):
		return bad(finding.NotTLS, "something answers that does not speak TLS: another service has this port (%v)",
			d.HandshakeErr)
	case isTimeout(d.HandshakeErr):
		return bad(finding.TLSSilent, "the port is open and nothing answers TLS: a load balancer without a pod "+
			"behind it, or a service that waits for its caller to speak first")
	case errors.Is(d.HandshakeErr, io.EOF), errors.Is(d.HandshakeErr, syscall.ECONNRESET):
		return bad(finding.TLSCut, "the connection is cut before TLS is agreed on: a load balancer without a pod behind "+
			"it, or a firewall (%v)", d.HandshakeErr)
	case strings.Contains(d.HandshakeErr.Error(), "protocol version"):
		return bad(finding.TLSOld, "it speaks no TLS of this age, so that it is no part of semaphore: %v", d.HandshakeErr)
	}
	return bad(finding.TLSFailed, "%v", d.HandshakeErr)
}

func judgePeer(d Dialled, bundles map[string]Bundle, there string, now time.Time) []show.Finding {
	if len(d.Certs) == 0 {
		return []show.Finding{show.Found(finding.ListenerNameWrong, there, d.Address, "correct the address",
			"it shows no certificate")}
	}
	id, err := x509svid.IDFromCert(d.Certs[0])
	if err != nil {
		return []show.Finding{show.Found(finding.ListenerNameWrong, there, d.Address,
			"correct the address, in the RemoteCluster or the exporter's configuration",
			"its certificate (%s) has no SPIFFE ID, so that it is no part of semaphore: %v", d.Certs[0].Subject, err)}
	}
	var all []show.Finding
	if id != d.Expect {
		all = append(all, show.Found(finding.ListenerNameWrong, "here", d.Address,
			"correct the address or the cluster's name, in the RemoteCluster or the exporter's configuration",
			"%s is there, and %s is expected", id, d.Expect))
	}
	subject := id.String() + " at " + d.Address
	all = append(all, judgeTime(finding.ListenerCertificate, subject, d.Certs[0], now, there,
		"in "+there+": semaphorectl pki rotate --dir DIR"))
	b, known := bundles[identity.ClusterOf(id)]
	switch err := chain(d.Certs, b, now); {
	case len(bundles) == 0 && !d.Showed: // only an address was given
		all = append(all, show.Found(finding.ListenerNotVerified, "here", subject, "give --config, --dir or --tls-dir",
			"no root certificates were given to verify it with"))
	case !known:
		all = append(all, show.Found(finding.ListenerUntrusted, "here", subject, "take the bundle of "+
			identity.ClusterOf(id)+" (semaphorectl pki bundle, there), and give it to semaphorectl pki secrets --peer-bundle",
			"no root certificates of %s are known here", identity.ClusterOf(id)))
	case len(b.Roots) == 0: // judgeBundle reports it
	case err != nil:
		all = append(all, show.Found(finding.ListenerUntrusted, "here", subject, fmt.Sprintf(
			"get the bundle of %s again (semaphorectl pki bundle, there): compare it with %s", there, b.File), "%v", err))
	}
	return all
}

func judgeAnswer(d Dialled, there, from string) show.Finding {
	logs := fmt.Sprintf("in %s: kubectl -n semaphore logs deploy/semaphore-%s | grep refused", there,
		strings.TrimPrefix(d.Expect.Path(), "/"))
	switch {
	case d.AfterErr == nil && (d.Showed || !d.Mutual):
		taken := ""
		if d.Mutual {
			taken = ", and our certificate is taken"
		}
		return show.Found(finding.ConnectionAgreed, "", d.Address, "", "TLS 1.3 is agreed on%s", taken)
	case !d.Showed:
		return show.Found(finding.CertificateNotShown, from, d.Address, "give --tls-dir, --dir or --config",
			"no certificate was shown to it, so that it is not known whether it accepts ours")
	case isTimeout(d.AfterErr):
		return show.Found(finding.SilentAfterTLS, there, d.Address, logs, "it agreed on TLS, and says nothing since")
	}
	return show.Found(finding.RefusedByListener, there, d.Address, logs,
		"it refuses our certificate, and TLS lets it say no more than %q: the reason is in its log. Usual are: it has no or "+
			"another bundle of %s, it does not list %s, or the clocks differ", d.AfterErr, from, from)
}
