package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

func TestNamespace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "namespace")
	was := podNamespace
	podNamespace = file
	t.Cleanup(func() { podNamespace = was })
	t.Setenv("POD_NAMESPACE", "")
	expect := func(configured, want string) {
		t.Helper()
		if got, err := Namespace(configured); got != want || err != nil {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	expect("", "semaphore")
	testkit.Must(t, os.WriteFile(file, []byte("federation\n"), 0o600))
	expect("", "federation")
	t.Setenv("POD_NAMESPACE", "elsewhere")
	expect("", "elsewhere")
	expect("configured", "configured")

	t.Setenv("POD_NAMESPACE", "")
	testkit.Must(t, os.Remove(file))
	testkit.Must(t, os.Mkdir(file, 0o700))
	if got, err := Namespace(""); err == nil || !strings.Contains(err.Error(), "leaderElection.namespace") {
		t.Errorf("%q, %v; want an error that names the key", got, err)
	}
}
