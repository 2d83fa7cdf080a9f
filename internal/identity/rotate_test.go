package identity

import (
	"crypto/x509"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// trusted returns the roots of the bundle in dir, and checks the certificates under them.
func trusted(t *testing.T, dir string) []*x509.Certificate {
	t.Helper()
	cluster, pem, err := Bundle(dir)
	must(t, err)
	bundle := testkit.Value(x509bundle.Parse(spiffeid.RequireTrustDomainFromString(cluster), pem))(t)
	return bundle.X509Authorities()
}

// passes reports whether a peer with these roots accepts the part.
func passes(t *testing.T, dir, part string, roots []*x509.Certificate) bool {
	t.Helper()
	svid, err := x509svid.Load(filepath.Join(dir, part, "tls.crt"), filepath.Join(dir, part, "tls.key"))
	must(t, err)
	_, _, err = x509svid.Verify(svid.Certificates, x509bundle.FromX509Authorities(svid.ID.TrustDomain(), roots))
	return err == nil
}

func stageIs(t *testing.T, dir string, want Stage) {
	t.Helper()
	stage, err := StageOf(dir)
	if err != nil || stage != want {
		t.Errorf("stage %d (%v); want %d", stage, err, want)
	}
}

// private checks the modes of all files, and that no temporary file is left.
func private(t *testing.T, dir string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		must(t, err)
		want := fs.FileMode(0o644)
		switch {
		case path != dir && strings.HasPrefix(d.Name(), "."):
			t.Errorf("%s is left", path)
		case d.IsDir():
			want = 0o700
		case strings.HasSuffix(path, ".key"):
			want = 0o600
		}
		if mode := testkit.Value(d.Info())(t).Mode().Perm(); mode != want {
			t.Errorf("%s has mode %s", path, mode)
		}
		return nil
	}))
}

func TestRotate(t *testing.T) {
	dir := initialised(t, "c1")
	root, broker, exporter := read(t, dir, "ca.crt"), read(t, dir, "broker", "tls.key"),
		read(t, dir, "exporter", "tls.key")
	now := time.Now().Truncate(time.Second)
	must(t, Rotate(dir, []string{"broker"}, 30*day, now))
	if string(read(t, dir, "broker", "tls.key")) == string(broker) ||
		string(read(t, dir, "exporter", "tls.key")) != string(exporter) {
		t.Error("want a new key of the broker, and of nobody else")
	}
	cert := testkit.Value(readCertificate(filepath.Join(dir, "broker", "tls.crt")))(t)
	if !cert.NotBefore.Equal(now.Add(-5*time.Minute)) || !cert.NotAfter.Equal(now.Add(30*day)) {
		t.Errorf("valid from %s to %s", cert.NotBefore, cert.NotAfter)
	}
	must(t, Rotate(dir, nil, 30*day, now))
	if string(read(t, dir, "exporter", "tls.key")) == string(exporter) || string(read(t, dir, "ca.crt")) != string(root) {
		t.Error("want new keys of all parts, and the same authority")
	}
	for _, part := range Parts {
		if !passes(t, dir, part, trusted(t, dir)) {
			t.Errorf("the %s is refused", part)
		}
	}
	private(t, dir)

	for name, test := range map[string]struct {
		dir      string
		parts    []string
		validity time.Duration
		now      time.Time
		want     string
	}{
		"an unknown part": {dir, []string{"agent"}, day, now, `part "agent": use exporter, broker, semaphorectl`},
		"no time":         {dir, nil, 0, now, "must be above 0"},
		"outlives the root": {dir, nil, 365 * day, now.Add(9*365*day + 363*day + time.Hour),
			"give them 1 days at most, or replace the authority"},
		"no such directory":    {filepath.Join(dir, "no"), nil, day, now, "no such file"},
		"another cluster's CA": {crossed(t), nil, day, now, "ca.key: is not the key of"},
	} {
		before := snapshot(t, dir)
		if err := Rotate(test.dir, test.parts, test.validity, test.now); err == nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v; want %q", name, err, test.want)
		}
		if snapshot(t, dir) != before {
			t.Errorf("%s: something was written", name)
		}
	}
}

// crossed returns a directory with one authority's certificate and another one's key.
func crossed(t *testing.T) string {
	a, b := initialised(t, "c1"), initialised(t, "c1")
	must(t, os.Rename(filepath.Join(b, "ca.key"), filepath.Join(a, "ca.key")))
	return a
}

// snapshot returns all files with their contents.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		must(t, err)
		all.WriteString(path + "\n")
		if !d.IsDir() {
			all.Write(read(t, path))
		}
		return nil
	}))
	return all.String()
}

func TestRotateCA(t *testing.T) {
	dir := initialised(t, "c1")
	now := time.Now()
	first := trusted(t, dir)
	refused := func(step int, want string) {
		t.Helper()
		before := snapshot(t, dir)
		if err := RotateCA(dir, step, validity, now); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("step %d: %v; want %q", step, err, want)
		}
		if snapshot(t, dir) != before {
			t.Errorf("step %d was refused, and changed something", step)
		}
	}
	refused(2, "the next one is 1")
	refused(3, "the next one is 1")
	refused(4, "use 1, 2 or 3")

	must(t, RotateCA(dir, 1, validity, now))
	stageIs(t, dir, NextTrusted)
	both := trusted(t, dir)
	if len(both) != 2 || !both[0].Equal(first[0]) {
		t.Fatalf("%d roots after step 1", len(both))
	}
	for _, part := range Parts {
		if !passes(t, dir, part, first) || !passes(t, dir, part, both) {
			t.Errorf("after step 1 the %s is refused", part)
		}
	}
	if string(read(t, dir, "semaphorectl", "c1.pem")) != string(pemOf(both...)) {
		t.Error("semaphorectl does not trust the next authority")
	}
	// Certificates that are rotated meanwhile are signed by the authority that everybody trusts.
	must(t, Rotate(dir, nil, day, now))
	if !passes(t, dir, "broker", first) {
		t.Error("a certificate of the next authority in step 1")
	}
	refused(1, "the next one is 2")
	refused(3, "the next one is 2")

	must(t, RotateCA(dir, 2, validity, now))
	stageIs(t, dir, NextSigns)
	after := trusted(t, dir)
	if len(after) != 2 || !after[0].Equal(both[1]) || !after[1].Equal(both[0]) {
		t.Fatalf("%d roots after step 2, or in another order", len(after))
	}
	for _, part := range Parts {
		if !passes(t, dir, part, both) || passes(t, dir, part, first) {
			t.Errorf("after step 2 the %s is not of the new authority alone", part)
		}
	}
	refused(1, "the next one is 3")
	refused(2, "the next one is 3")
	private(t, dir)

	must(t, RotateCA(dir, 3, validity, now))
	stageIs(t, dir, Steady)
	last := trusted(t, dir)
	if len(last) != 1 || !last[0].Equal(both[1]) ||
		string(read(t, dir, "semaphorectl", "c1.pem")) != string(pemOf(last...)) {
		t.Errorf("%d roots after step 3", len(last))
	}
	for _, part := range Parts {
		if !passes(t, dir, part, last) {
			t.Errorf("after step 3 the %s is refused", part)
		}
	}
	must(t, Rotate(dir, nil, day, now))
	must(t, RotateCA(dir, 1, validity, now)) // repeated
	private(t, dir)
}

// TestRotateCARefusesWhileOldCertificatesAreUsed: step 3 would break a part whose certificate is still signed by the
// old authority.
func TestRotateCARefusesWhileOldCertificatesAreUsed(t *testing.T) {
	dir := initialised(t, "c1")
	must(t, RotateCA(dir, 1, validity, time.Now()))
	cert, key := read(t, dir, "exporter", "tls.crt"), read(t, dir, "exporter", "tls.key")
	must(t, RotateCA(dir, 2, validity, time.Now()))
	must(t, os.WriteFile(filepath.Join(dir, "exporter", "tls.crt"), cert, 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "exporter", "tls.key"), key, 0o600))
	if err := RotateCA(dir, 3, validity, time.Now()); err == nil ||
		!strings.Contains(err.Error(), "certificate of the exporter is not of the new authority") {
		t.Error(err)
	}
	if len(trusted(t, dir)) != 2 {
		t.Error("a root was taken out")
	}
}

// TestRotateCACutShort: step 2 has many writes. Wherever it is interrupted, the bundle has both roots, and a repeated
// step 2 has the same result.
func TestRotateCACutShort(t *testing.T) {
	rename := func(from, to string) func(string) error {
		return func(dir string) error { return os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)) }
	}
	writes := []struct {
		name string
		do   func(dir string) error
	}{
		{"nothing", func(string) error { return nil }},
		{"directory", func(dir string) error { return os.Mkdir(filepath.Join(dir, "old"), 0o700) }},
		{"old key", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "old", "ca.key"), read(t, dir, "ca.key"), 0o600)
		}},
		{"old certificate", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "old", "ca.crt"), read(t, dir, "ca.crt"), 0o644)
		}},
		{"new certificate", rename("next/ca.crt", "ca.crt")},
		{"new key", rename("next/ca.key", "ca.key")},
		{"one certificate", func(dir string) error {
			ca, err := readAuthority(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"))
			if err != nil {
				return err
			}
			return ca.rotate(dir, []string{"exporter"}, day, time.Now())
		}},
		{"a key without its certificate", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "broker", "tls.key"), read(t, dir, "exporter", "tls.key"), 0o600)
		}},
	}
	for n := range writes {
		t.Run(writes[n].name, func(t *testing.T) {
			dir := initialised(t, "c1")
			must(t, RotateCA(dir, 1, validity, time.Now()))
			both := trusted(t, dir)
			for _, w := range writes[:n+1] {
				must(t, w.do(dir))
			}
			if now := trusted(t, dir); len(now) != 2 || !slices.ContainsFunc(now, both[0].Equal) ||
				!slices.ContainsFunc(now, both[1].Equal) {
				t.Fatalf("%d roots where it was cut short", len(now))
			}
			if n > 0 {
				stageIs(t, dir, CutShort)
				if err := Rotate(dir, nil, day, time.Now()); err == nil || !strings.Contains(err.Error(), "cut short") {
					t.Errorf("rotate: %v", err)
				}
				if err := RotateCA(dir, 3, validity, time.Now()); err == nil || !strings.Contains(err.Error(), "cut short") {
					t.Errorf("step 3: %v", err)
				}
			}
			must(t, RotateCA(dir, 2, validity, time.Now()))
			stageIs(t, dir, NextSigns)
			for _, part := range Parts {
				if !passes(t, dir, part, both[1:]) {
					t.Errorf("the %s is not of the new authority", part)
				}
			}
			if now := trusted(t, dir); len(now) != 2 {
				t.Errorf("%d roots at the end", len(now))
			}
			must(t, RotateCA(dir, 3, validity, time.Now()))
			private(t, dir)
		})
	}
}

func TestInventory(t *testing.T) {
	dir := initialised(t, "c1")
	list := func() string {
		items := testkit.Value(Inventory(dir))(t)
		var files []string
		for _, i := range items {
			files = append(files, i.File)
		}
		return strings.Join(files, " ")
	}
	if got := list(); got != "ca.crt exporter/tls.crt broker/tls.crt semaphorectl/tls.crt" {
		t.Error(got)
	}
	must(t, RotateCA(dir, 1, validity, time.Now()))
	if got := list(); got != "ca.crt next/ca.crt exporter/tls.crt broker/tls.crt semaphorectl/tls.crt" {
		t.Error(got)
	}
	must(t, os.Remove(filepath.Join(dir, "broker", "tls.crt")))
	if _, err := Inventory(dir); err == nil || !strings.Contains(err.Error(), "certificate of the broker") {
		t.Error(err)
	}
}

// TestSecretsRefusesWhatPeersWould: Secrets prints only what peers accept.
func TestSecretsRefusesWhatPeersWould(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(dir string)
		now   time.Time
		want  string
	}{
		"a key of another part": {func(dir string) {
			must(t, os.WriteFile(filepath.Join(dir, "broker", "tls.key"), read(t, dir, "exporter", "tls.key"), 0o600))
		}, time.Now(), "certificate of the broker in"},
		"another part's": {func(dir string) {
			must(t, os.RemoveAll(filepath.Join(dir, "broker")))
			must(t, os.CopyFS(filepath.Join(dir, "broker"), os.DirFS(filepath.Join(dir, "exporter"))))
		}, time.Now(), "belongs to spiffe://c1/exporter, not to spiffe://c1/broker"},
		"another authority's": {func(dir string) {
			must(t, os.RemoveAll(filepath.Join(dir, "broker")))
			must(t, os.CopyFS(filepath.Join(dir, "broker"), os.DirFS(filepath.Join(initialised(t, "c1"), "broker"))))
		}, time.Now(), "signed by unknown authority"},
		"expired": {func(string) {}, time.Now().Add(366 * day), "has expired"},
	} {
		dir := initialised(t, "c1")
		test.spoil(dir)
		if out, err := Secrets(dir, "semaphore", nil, test.now); err == nil || out != nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v; want %q", name, err, test.want)
		}
	}
}
