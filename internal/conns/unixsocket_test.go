package conns

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sock")
	for range 2 { // the second finds the socket of the first, which has not removed it
		listener := testkit.Value(Listen(path))(t)
		t.Cleanup(func() { listener.Close() })
	}
	if mode := testkit.Value(os.Stat(path))(t).Mode().Perm(); mode != 0o600 {
		t.Errorf("mode %o: others can connect", mode)
	}
	precious := filepath.Join(t.TempDir(), "precious")
	testkit.Must(t, os.WriteFile(precious, []byte("data"), 0o600))
	if _, err := Listen(precious); err == nil {
		t.Error("a file was taken for a socket")
	}
	if data, _ := os.ReadFile(precious); string(data) != "data" {
		t.Error("the file is not as it was")
	}
}
