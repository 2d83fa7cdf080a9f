package kubetest

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"
)

// StartAdmitting is Start for an apiserver with an AdmissionConfiguration of its own, in YAML.
func StartAdmitting(t testing.TB, configuration string) *rest.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "admission.yaml")
	if err := os.WriteFile(path, []byte(configuration), 0o600); err != nil {
		t.Fatalf("configuration of the admission plugins: %v", err)
	}
	cfg, _ := startWith(t, defaultRange, "--admission-control-config-file="+path)
	return cfg
}
