package kernel

import (
	"os"
	"path/filepath"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/test/testkit"
)

// FuzzKeyFile: whatever the file of a private key contains, the result is a key or an error, and the error does not
// reveal the content.
func FuzzKeyFile(f *testing.F) {
	key := wgtypes.Key{1, 2, 3}
	for _, text := range []string{key.String(), key.String() + "\n", " " + key.String(), key.String()[:43],
		wgtypes.Key{}.String(), "", "\x00", key.String() + key.String()} {
		f.Add([]byte(text))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		keys := NewKeys(dir)
		path := keys.path("wireguard.c2")
		testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		testkit.Must(t, os.WriteFile(path, data, 0o600))
		stored, err := keys.read("wireguard.c2")
		if (err == nil) == (stored.Private == wgtypes.Key{}) {
			t.Errorf("%q is the key %x and the error %v", data, stored.Private, err)
		}
		if want := path + " contains no key (32 bytes in base64): restore the right one, or move the file away so that the " +
			"agent generates a new key"; err != nil && err.Error() != want {
			t.Errorf("the error is %q", err)
		}
	})
}
