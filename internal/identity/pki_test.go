package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

const day = 24 * time.Hour

var validity = Validity{Authority: 10 * 365 * day, Certificate: 365 * day}

// must ends the test on an error.
var must = testkit.Must

func read(t *testing.T, path ...string) []byte {
	t.Helper()
	return testkit.Value(os.ReadFile(filepath.Join(path...)))(t)
}

func initialised(t *testing.T, cluster string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), cluster)
	must(t, Init(dir, cluster, validity, time.Now()))
	return dir
}

func TestInit(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	dir := filepath.Join(t.TempDir(), "pki", "c1")
	must(t, Init(dir, "c1", validity, now))

	cluster, roots, err := Bundle(dir)
	must(t, err)
	if cluster != "c1" {
		t.Errorf("the bundle is that of %q", cluster)
	}
	bundle := testkit.Value(x509bundle.Parse(spiffeid.RequireTrustDomainFromString("c1"), roots))(t)
	for _, part := range Parts {
		svid, err := x509svid.Load(filepath.Join(dir, part, "tls.crt"), filepath.Join(dir, part, "tls.key"))
		must(t, err)
		if want := "spiffe://c1/" + part; svid.ID.String() != want {
			t.Errorf("the certificate of the %s is that of %s", part, svid.ID)
		}
		if _, _, err := x509svid.Verify(svid.Certificates, bundle); err != nil {
			t.Errorf("the certificate of the %s: %v", part, err)
		}
		cert := svid.Certificates[0]
		if !cert.NotBefore.Equal(now.Add(-5*time.Minute)) || !cert.NotAfter.Equal(now.Add(365*day)) {
			t.Errorf("valid from %s to %s", cert.NotBefore, cert.NotAfter)
		}
		if cert.IsCA || len(cert.DNSNames) > 0 || cert.KeyUsage != x509.KeyUsageDigitalSignature {
			t.Errorf("the certificate of the %s may do more than it needs", part)
		}
	}
	root := bundle.X509Authorities()[0]
	key, ok := root.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() || !root.NotAfter.Equal(now.Add(10*365*day)) || !root.IsCA ||
		!root.MaxPathLenZero {
		t.Errorf("the authority is %+v", root)
	}
	if got := read(t, dir, "semaphorectl", "c1.pem"); string(got) != string(roots) {
		t.Error("semaphorectl has another root than its cluster")
	}
	private(t, dir)
}

func TestInitWritesOverNothing(t *testing.T) {
	dir := initialised(t, "c1")
	before := read(t, dir, "broker", "tls.key")
	if err := Init(dir, "c1", validity, time.Now()); err == nil ||
		!strings.Contains(err.Error(), "ca.key: exists already") {
		t.Errorf("a second time: %v", err)
	}
	// An interrupted Init leaves no ca.key.
	must(t, os.Remove(filepath.Join(dir, "ca.key")))
	if err := Init(dir, "c1", validity, time.Now()); err == nil ||
		!strings.Contains(err.Error(), "is not overwritten") {
		t.Errorf("after one that was cut short: %v", err)
	}
	if string(before) != string(read(t, dir, "broker", "tls.key")) {
		t.Error("a key was replaced")
	}
}

func TestInitRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		cluster  string
		validity Validity
		want     string
	}{
		"capitals":          {"C1", validity, "no cluster name"},
		"a SPIFFE ID":       {"spiffe://c1", validity, "no cluster name"},
		"nothing":           {"", validity, "no cluster name"},
		"outlived":          {"c1", Validity{Authority: day, Certificate: 2 * day}, "outlive their authority"},
		"valid for nothing": {"c1", Validity{Authority: day}, "must be above 0"},
	} {
		dir := filepath.Join(t.TempDir(), "pki")
		if err := Init(dir, test.cluster, test.validity, time.Now()); err == nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: something was written", name)
		}
	}
}

func TestSecrets(t *testing.T) {
	c1, c2 := initialised(t, "c1"), initialised(t, "c2")
	_, peer, err := Bundle(c2)
	must(t, err)
	// An operator's file contains more than it should.
	careless := append(append([]byte{}, peer...), read(t, c2, "ca.key")...)
	out, err := Secrets(c1, "semaphore", map[string][]byte{"c2": careless}, time.Now())
	if err != nil {
		// The library may also refuse such a file. In either case the key is not printed.
		out = testkit.Value(Secrets(c1, "semaphore", map[string][]byte{"c2": peer}, time.Now()))(t)
	}
	if strings.Contains(string(out), "BEGIN PRIVATE KEY") {
		t.Error("a private key is in the open")
	}
	secrets := map[string]corev1.Secret{}
	for _, doc := range strings.Split(strings.TrimPrefix(string(out), "---\n"), "\n---\n") {
		var config corev1.ConfigMap
		var secret corev1.Secret
		switch {
		case strings.Contains(doc, "kind: ConfigMap"):
			must(t, yaml.UnmarshalStrict([]byte(doc), &config))
			if config.Name != "semaphore-bundles" || config.Namespace != "semaphore" || len(config.Data) != 2 {
				t.Errorf("ConfigMap %v with %d files", config.ObjectMeta, len(config.Data))
			}
			for cluster, dir := range map[string]string{"c1": c1, "c2": c2} {
				if config.Data[cluster+".pem"] != string(read(t, dir, "ca.crt")) {
					t.Errorf("%s.pem is not the root of %s", cluster, cluster)
				}
			}
		default:
			must(t, yaml.UnmarshalStrict([]byte(doc), &secret))
			secrets[secret.Name] = secret
		}
	}
	for name, part := range map[string]string{"semaphore-exporter-tls": "exporter", "semaphore-broker-tls": "broker",
		"semaphorectl-tls": "semaphorectl"} {
		s, ok := secrets[name]
		if !ok || s.Type != corev1.SecretTypeTLS || s.Namespace != "semaphore" {
			t.Errorf("Secret %s: %v", name, s.ObjectMeta)
		}
		if string(s.Data["tls.key"]) != string(read(t, c1, part, "tls.key")) ||
			string(s.Data["tls.crt"]) != string(read(t, c1, part, "tls.crt")) {
			t.Errorf("Secret %s does not hold what the %s needs", name, part)
		}
	}
	if len(secrets) != 3 {
		t.Errorf("%d Secrets", len(secrets))
	}
}

func TestSecretsRefuses(t *testing.T) {
	c1, c2 := initialised(t, "c1"), initialised(t, "c2")
	_, peer, err := Bundle(c2)
	must(t, err)
	for name, test := range map[string]struct {
		peers map[string][]byte
		want  string
	}{
		"under another's name": {map[string][]byte{"c3": peer}, `its certificate is that of "c2"`},
		"under its own name":   {map[string][]byte{"c1": peer}, "this cluster itself"},
		"no certificate": {map[string][]byte{"c2": []byte("hello")},
			"is not what `semaphorectl pki bundle` prints there"},
		"a key alone":          {map[string][]byte{"c2": read(t, c2, "ca.key")}, "is not what"},
		"empty":                {map[string][]byte{"c2": nil}, "is not what"},
		"no name of a cluster": {map[string][]byte{"../c2": peer}, "no cluster name"},
	} {
		if out, err := Secrets(c1, "semaphore", test.peers, time.Now()); err == nil ||
			!strings.Contains(err.Error(), test.want) || out != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Secrets(t.TempDir(), "semaphore", nil, time.Now()); err == nil {
		t.Error("a directory without an authority is taken")
	}
}

func TestBundleOfAnotherKind(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string][]byte{
		"no PEM":         []byte("hello"),
		"another PEM":    pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}),
		"no certificate": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}),
	} {
		must(t, os.WriteFile(filepath.Join(dir, "ca.crt"), content, 0o600))
		if _, _, err := Bundle(dir); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
