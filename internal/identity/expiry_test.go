package identity

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// TestExpiry: the times of the part's certificate and of roots are metrics, those of the certificate that is in the
// file now, and there is none for what cannot be read.
func TestExpiry(t *testing.T) {
	dir, now := t.TempDir(), time.Now().Truncate(time.Second)
	here, there := filepath.Join(dir, "c1"), filepath.Join(dir, "c2")
	must(t, Init(here, "c1", Validity{Authority: 10 * day, Certificate: day}, now))
	must(t, Init(there, "c2", Validity{Authority: 20 * day, Certificate: day}, now))
	_, own, err := Bundle(here)
	must(t, err)
	_, roots, err := Bundle(there)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "c1.pem"), own, 0o600))
	source := testkit.Value(NewSource(config.TLS{CertFile: filepath.Join(here, "broker", "tls.crt"),
		KeyFile: filepath.Join(here, "broker", "tls.key"), BundleDir: dir}))(t)
	registry := prometheus.NewRegistry()
	registry.MustRegister(Expiry(source, "c1"))
	is := func(want float64, kind, cluster string) {
		t.Helper()
		got, _ := testkit.Metric(t, registry, "semaphore_certificate_not_after_timestamp_seconds", cluster, kind)
		if got != want {
			t.Errorf("%s of %s is valid until %v, want %v", kind, cluster, got, want)
		}
	}
	is(float64(now.Add(day).Unix()), "own", "c1")
	is(float64(now.Add(10*day).Unix()), "root", "c1")
	is(0, "root", "c2")
	must(t, source.SetRoots(map[string]string{"c2": string(roots)}))
	is(float64(now.Add(20*day).Unix()), "root", "c2")
	must(t, os.Remove(filepath.Join(dir, "c1.pem")))
	is(0, "root", "c1")
	is(float64(now.Add(20*day).Unix()), "root", "c2")
}
