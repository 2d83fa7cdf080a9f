package check

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-semaphore/semaphore/ctl/show"
	"github.com/kube-semaphore/semaphore/internal/finding"
	"github.com/kube-semaphore/semaphore/internal/identity"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

const day = 24 * time.Hour

// now is the time at which the tests create everything.
var now = time.Now().Truncate(time.Second)

var must = testkit.Must

// cluster returns the directory of a cluster's certificates, created at a time and valid for a year.
func cluster(t *testing.T, name string, made time.Time) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	must(t, identity.Init(dir, name, identity.Validity{Authority: 3650 * day, Certificate: 365 * day}, made))
	return dir
}

func bundleOf(t *testing.T, dir string) Bundle {
	t.Helper()
	name, _, err := identity.Bundle(dir)
	must(t, err)
	b := ReadBundle(name, filepath.Join(dir, "ca.crt"))
	must(t, b.Err)
	return b
}

func own(t *testing.T, dir, part string) Own {
	t.Helper()
	o, _ := ReadOwn(filepath.Join(dir, part, "tls.crt"), filepath.Join(dir, part, "tls.key"),
		identity.Exporter("c1"), "again")
	return o
}

// codes returns the codes of findings, each with its level unless it is OK.
func codes(findings []show.Finding) string {
	var all []string
	for _, f := range findings {
		code := string(f.Code)
		if f.Level != finding.OK {
			code = strings.ToUpper(string(f.Level)) + ":" + code
		}
		all = append(all, code)
	}
	return strings.Join(all, " ")
}

// complete checks that each finding that is not OK says who must act and how, and that all have evidence.
func complete(t *testing.T, findings []show.Finding) {
	t.Helper()
	for _, f := range findings {
		toDo := f.Level != finding.OK && f.Level != finding.NotChecked
		if f.Code == "" || f.Subject == "" || f.Evidence == "" || toDo && (f.Side == "" || f.Fix == "") ||
			strings.Contains(f.Evidence, "%!") {
			t.Errorf("incomplete: %+v", f)
		}
	}
}

func TestJudgeOwn(t *testing.T) {
	dir, other := cluster(t, "c1", now), cluster(t, "c1", now)
	good, roots := own(t, dir, "exporter"), map[string]Bundle{"c1": bundleOf(t, dir)}
	for name, test := range map[string]struct {
		own   func(*Own)
		roots map[string]Bundle
		at    time.Time
		want  string
		says  []string
	}{
		"good": {func(*Own) {}, roots, now, "CertificateValid", []string{"valid until"}},
		"last days": {func(*Own) {}, roots, now.Add(340 * day), "WARNING:CertificateExpiresSoon",
			[]string{"25 days from now"}},
		"not yet the last days": {func(*Own) {}, roots, now.Add(330 * day), "CertificateValid", nil},
		"expired": {func(*Own) {}, roots, now.Add(366 * day), "ERROR:CertificateExpired",
			[]string{"has expired 24h0m0s ago", "and our clock says"}},
		"our clock is behind": {func(*Own) {}, roots, now.Add(-10 * time.Minute), "ERROR:CertificateNotYetValid",
			[]string{"for another 5m0s", "our clock says"}},
		"5 minutes behind": {func(*Own) {}, roots, now.Add(-5 * time.Minute), "CertificateValid", nil},
		"another part's": {func(o *Own) { *o = own(t, dir, "broker") }, roots, now,
			"ERROR:CertificateNameWrong CertificateValid",
			[]string{"belongs to spiffe://c1/broker, and it must be spiffe://c1/exporter"}},
		"another authority's": {func(o *Own) { *o = own(t, other, "exporter") }, roots, now,
			"CertificateValid ERROR:CertificateUntrusted", []string{"no root that is trusted for c1 signed it"}},
		"and expired": {func(o *Own) { *o = own(t, other, "exporter") }, roots, now.Add(366 * day),
			"ERROR:CertificateExpired ERROR:CertificateUntrusted", nil},
		"no bundle": {func(*Own) {}, nil, now, "CertificateValid", nil},
		"no certificate": {func(o *Own) { o.CertErr = os.ErrNotExist }, roots, now, "ERROR:CertificateUnreadable",
			[]string{"file does not exist"}},
		"no SPIFFE ID": {func(o *Own) { o.Certs = []*x509.Certificate{{}} }, roots, now, "ERROR:CertificateNameWrong",
			[]string{"has no SPIFFE ID"}},
		"no key": {func(o *Own) { o.KeyErr = os.ErrNotExist }, roots, now,
			"ERROR:KeyUnusable CertificateValid", nil},
		"a key for everyone": {func(o *Own) { o.KeyOpen = true }, roots, now, "WARNING:KeyOpen CertificateValid", nil},
		"any name, as none given": {func(o *Own) { *o = own(t, dir, "broker"); o.Want = identity.Broker("c1") }, roots, now,
			"CertificateValid", nil},
	} {
		o := good
		test.own(&o)
		got := judgeOwn(o, test.roots, test.at)
		complete(t, got)
		if codes(got) != test.want {
			t.Errorf("%s: %s; want %s", name, codes(got), test.want)
		}
		all := ""
		for _, f := range got {
			all += f.Evidence + "\n"
		}
		for _, says := range test.says {
			if !strings.Contains(all, says) {
				t.Errorf("%s: no %q in\n%s", name, says, all)
			}
		}
	}
}

func TestJudgeBundle(t *testing.T) {
	c1, c2 := cluster(t, "c1", now), cluster(t, "c2", now)
	roots := append(bundleOf(t, c1).Roots, bundleOf(t, cluster(t, "c1", now)).Roots...)
	for name, test := range map[string]struct {
		bundle Bundle
		at     time.Time
		want   string
	}{
		"good":                 {Bundle{Roots: roots[:1]}, now, "RootValid"},
		"two roots":            {Bundle{Roots: roots}, now, "RootValid RootValid"},
		"missing":              {Bundle{Err: fs.ErrNotExist}, now, "ERROR:BundleMissing"},
		"unreadable":           {Bundle{Err: os.ErrPermission}, now, "ERROR:BundleUnreadable"},
		"empty":                {Bundle{}, now, "ERROR:BundleUnreadable"},
		"another cluster's":    {Bundle{Roots: bundleOf(t, c2).Roots}, now, "ERROR:BundleOfAnotherCluster"},
		"no authority":         {Bundle{Roots: own(t, c1, "broker").Certs}, now, "ERROR:BundleOfAnotherCluster"},
		"a leaf without names": {Bundle{Roots: []*x509.Certificate{{}}}, now, "ERROR:RootIsNoAuthority"},
		"last days":            {Bundle{Roots: roots[:1]}, now.Add(3625 * day), "WARNING:RootExpiresSoon"},
		"expired":              {Bundle{Roots: roots[:1]}, now.Add(3651 * day), "ERROR:RootExpired"},
		"our clock is behind":  {Bundle{Roots: roots[:1]}, now.Add(-time.Hour), "ERROR:RootNotYetValid"},
	} {
		b := test.bundle
		b.Cluster, b.File = "c1", "c1.pem"
		got := judgeBundle(b, test.at)
		complete(t, got)
		if name == "no authority" {
			test.want = "ERROR:RootIsNoAuthority"
		}
		if codes(got) != test.want {
			t.Errorf("%s: %s; want %s", name, codes(got), test.want)
		}
	}
}

func TestJudgeDialled(t *testing.T) {
	c2, other := cluster(t, "c2", now), cluster(t, "c2", now)
	broker, exporter := own(t, c2, "broker").Certs, own(t, c2, "exporter").Certs
	roots := map[string]Bundle{"c2": bundleOf(t, c2)}
	good := Dialled{Address: "192.0.2.1:8443", Expect: identity.Broker("c2"), From: "c1", Version: tls.VersionTLS13,
		Certs: broker, Showed: true, Mutual: true}
	timeout := &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	for name, test := range map[string]struct {
		change func(*Dialled)
		roots  map[string]Bundle
		at     time.Time
		want   string
		side   string // the side of the last finding
	}{
		"good": {func(*Dialled) {}, roots, now, "ListenerCertificateValid ConnectionAgreed", ""},
		"a listener for agents": {func(d *Dialled) { d.Mutual, d.Showed = false, false }, roots, now,
			"ListenerCertificateValid ConnectionAgreed", ""},
		"no such name": {func(d *Dialled) { d.ResolveErr = &net.DNSError{} }, roots, now,
			"ERROR:AddressUnknown", "c1"},
		"nobody listens": {func(d *Dialled) { d.ConnectErr = &net.OpError{Err: syscall.ECONNREFUSED} }, roots, now,
			"ERROR:PortClosed", "c2"},
		"nobody answers": {func(d *Dialled) { d.ConnectErr = timeout }, roots, now, "ERROR:PortUnreachable",
			"network"},
		"no route": {func(d *Dialled) { d.ConnectErr = syscall.EHOSTUNREACH }, roots, now,
			"ERROR:PortUnreachable", "network"},
		"no TLS": {func(d *Dialled) { d.HandshakeErr = tls.RecordHeaderError{Msg: "first record"} }, roots,
			now, "ERROR:NotTLS", "c2"},
		"silence": {func(d *Dialled) { d.HandshakeErr = timeout }, roots, now, "ERROR:TLSSilent", "c2"},
		"cut":     {func(d *Dialled) { d.HandshakeErr = io.EOF }, roots, now, "ERROR:TLSCut", "c2"},
		"TLS 1.1": {func(d *Dialled) {
			d.HandshakeErr = errors.New("remote error: tls: protocol version not supported")
		}, roots, now, "ERROR:TLSOld", "c2"},
		"TLS 1.2": {func(d *Dialled) { d.Version = tls.VersionTLS12 }, roots, now, "ERROR:TLSOld", "c2"},
		"another alert": {func(d *Dialled) { d.HandshakeErr = errors.New("remote error: tls: internal error") },
			roots, now, "ERROR:TLSFailed", "c2"},
		"somebody else": {func(d *Dialled) { d.Certs = exporter }, roots, now,
			"ERROR:ListenerNameWrong ListenerCertificateValid ConnectionAgreed", ""},
		"a web server": {func(d *Dialled) { d.Certs = []*x509.Certificate{{}} }, roots, now,
			"ERROR:ListenerNameWrong ConnectionAgreed", ""},
		"no certificate": {func(d *Dialled) { d.Certs = nil }, roots, now, "ERROR:ListenerNameWrong ConnectionAgreed", ""},
		"another root": {func(d *Dialled) { d.Certs = own(t, other, "broker").Certs }, roots, now,
			"ListenerCertificateValid ERROR:ListenerUntrusted ConnectionAgreed", ""},
		"only an address": {func(d *Dialled) { d.Showed, d.AfterErr = false, io.EOF }, nil, now,
			"ListenerCertificateValid WARNING:ListenerNotVerified WARNING:CertificateNotShown", "c1"},
		"no root": {func(*Dialled) {}, nil, now, "ListenerCertificateValid ERROR:ListenerUntrusted ConnectionAgreed", ""},
		"expired": {func(*Dialled) {}, roots, now.Add(366 * day), "ERROR:ListenerCertificateExpired ConnectionAgreed", ""},
		"our clock is behind": {func(*Dialled) {}, roots, now.Add(-time.Hour),
			"ERROR:ListenerCertificateNotYetValid ConnectionAgreed", ""},
		"soon": {func(*Dialled) {}, roots, now.Add(350 * day),
			"WARNING:ListenerCertificateExpiresSoon ConnectionAgreed", ""},
		"it refuses us": {func(d *Dialled) { d.AfterErr = errors.New("remote error: tls: bad certificate") },
			roots, now, "ListenerCertificateValid ERROR:RefusedByListener", "c2"},
		"we have nothing to show": {func(d *Dialled) { d.Showed = false; d.AfterErr = errors.New("certificate required") },
			roots, now, "ListenerCertificateValid WARNING:CertificateNotShown", "c1"},
		"it is silent after TLS": {func(d *Dialled) { d.AfterErr = timeout }, roots, now,
			"ListenerCertificateValid WARNING:SilentAfterTLS", "c2"},
		"nothing is known of whose": {func(d *Dialled) { d.From = ""; d.Showed = false; d.AfterErr = io.EOF }, roots, now,
			"ListenerCertificateValid WARNING:CertificateNotShown", "here"},
	} {
		d := good
		test.change(&d)
		got := judgeDialled(d, test.roots, test.at)
		complete(t, got)
		if codes(got) != test.want || got[len(got)-1].Side != test.side {
			t.Errorf("%s: %s, by %q; want %s, by %q", name, codes(got), got[len(got)-1].Side, test.want, test.side)
		}
	}
	// One that does not answer is no error while another address of the same listener works.
	dead, refuses, c3 := good, good, good
	dead.ConnectErr, refuses.AfterErr, c3.Expect = timeout, errors.New("bad certificate"), identity.Broker("c3")
	for want, all := range map[string][]Dialled{
		"WARNING:PortUnreachable ListenerCertificateValid ConnectionAgreed":              {dead, good},
		"ERROR:PortUnreachable ListenerCertificateValid ERROR:RefusedByListener":         {dead, refuses},
		"ListenerCertificateValid ConnectionAgreed ListenerCertificateValid ERROR:Refus": {good, refuses},
		"ERROR:PortUnreachable ERROR:PortUnreachable":                                    {dead, dead},
		"ERROR:PortUnreachable ERROR:ListenerNameWrong":                                  {dead, c3},
	} {
		if got := codes(judgeAllDialled(all, roots, now)); !strings.HasPrefix(got, want) {
			t.Errorf("%s; want %s", got, want)
		}
	}
}

// TestJudgeClock: the clock is mentioned exactly if a certificate is outside of its validity.
func TestJudgeClock(t *testing.T) {
	dir := cluster(t, "c1", now)
	facts := Facts{Now: now, Own: []Own{own(t, dir, "exporter")}, Roots: []Bundle{bundleOf(t, dir)}, ClockKnown: true}
	for _, test := range []struct {
		at     time.Time
		known  bool
		synced bool
		want   string
	}{
		{now, true, false, "RootValid CertificateValid"},
		{now.Add(366 * day), true, false, "RootValid ERROR:CertificateExpired WARNING:ClockNotSynchronised"},
		{now.Add(366 * day), true, true, "RootValid ERROR:CertificateExpired ClockSynchronised"},
		{now.Add(366 * day), false, false, "RootValid ERROR:CertificateExpired"},
	} {
		facts.Now, facts.ClockKnown, facts.ClockSynced = test.at, test.known, test.synced
		got := Judge(facts)
		complete(t, got)
		if codes(got) != test.want {
			t.Errorf("%s; want %s", codes(got), test.want)
		}
	}
	facts = Facts{Now: now, Configs: []Config{{File: "c.yaml", Err: errors.New("cluster: required")},
		{File: "d.yaml", Of: "of the broker of c1"},
		{File: "e.yaml", Err: errors.Join(errors.New(`cluster: "" is no cluster name`), errors.New("remotes: required"))}}}
	got := Judge(facts)
	complete(t, got)
	if codes(got) != "ERROR:ConfigInvalid ConfigValid ERROR:ConfigInvalid ERROR:ConfigInvalid" ||
		got[3].Evidence != "remotes: required" || !strings.Contains(got[2].Fix, "--cluster") {
		t.Error(codes(got), got)
	}
}

// TestSoon: "soon" is what its meaning and the documents say: the last fifth of a life, and at most its last 30 days.
func TestSoon(t *testing.T) {
	for life, want := range map[time.Duration]time.Duration{10 * day: 2 * day, 365 * day: 30 * day, 3650 * day: 30 * day} {
		if soon(life) != want {
			t.Errorf("of a life of %s the last %s are soon, want %s", life, soon(life), want)
		}
	}
	texts := []string{finding.Certificate.ExpiresSoon.Definition().Meaning}
	for _, page := range []string{"certificates", "checks", "operate"} {
		texts = append(texts, string(testkit.Value(os.ReadFile("../../docs/"+page+".md"))(t)))
	}
	for _, text := range texts {
		if !strings.Contains(strings.Join(strings.Fields(text), " "), " life, and at most its last 30 days") {
			t.Errorf("when a certificate expires soon is missing in %.60q", text)
		}
	}
}
