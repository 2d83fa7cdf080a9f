package wireguard_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	. "github.com/kube-semaphore/semaphore/agent/wireguard"
)

const device = "wireguard.c2"

func TestKeyIsMadeOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	if _, err := ReadKey(dir, device); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading a key that is not there: %v", err)
	}
	key, err := Key(dir, device, nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Key(dir, device, nil)
	if err != nil || again != key || key == (wgtypes.Key{}) {
		t.Errorf("the second time: %v, the same: %v", err, again == key)
	}
	path := filepath.Join(dir, device+".key")
	data, err := os.ReadFile(path)
	if err != nil || string(data) != key.String() {
		t.Errorf("the file does not hold the key alone, in base64: %v", err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("%d files; want the key alone", len(entries))
	}
}

func TestKeyOfOthers(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, device+".key")
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	// As semaphore-wireguard, and as people, leave it.
	if err := os.WriteFile(path, []byte(key.String()+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := Key(dir, device, nil)
	if err != nil || got != key {
		t.Errorf("%v, the same: %v", err, got == key)
	}
	if info, _ := os.Stat(path); info.Mode() != 0o600 {
		t.Errorf("mode %v: others can read it", info.Mode())
	}
}

func TestDamagedKeyStays(t *testing.T) {
	for _, content := range []string{"", "damaged", strings.Repeat("A", 43)} {
		dir := t.TempDir()
		path := filepath.Join(dir, device+".key")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		stands := &Device{PrivateKey: wgtypes.Key{1}}
		_, err := Key(dir, device, stands)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", content, err)
		}
		if err != nil && content != "" && strings.Contains(err.Error(), content) {
			t.Errorf("%q is told: %v", content, err)
		}
		if data, _ := os.ReadFile(path); string(data) != content {
			t.Errorf("%q was written over: %q", content, data)
		}
	}
}

// The file was lost, the device stands: peers know the node by the device's key.
func TestLostKeyFileIsWrittenBack(t *testing.T) {
	dir := t.TempDir()
	stands := &Device{PrivateKey: wgtypes.Key{1, 2, 3}}
	key, err := Key(dir, device, stands)
	if err != nil || key != stands.PrivateKey {
		t.Errorf("%v, the device's: %v", err, key == stands.PrivateKey)
	}
	if kept, err := ReadKey(dir, device); err != nil || kept != stands.PrivateKey {
		t.Errorf("the file: %v, the device's: %v", err, kept == stands.PrivateKey)
	}
	fresh, err := Key(dir, "wireguard.c3", &Device{}) // one without a key yet
	if err != nil || fresh == (wgtypes.Key{}) || fresh == stands.PrivateKey {
		t.Errorf("a device that has none yet: %v", err)
	}
}

func TestKeyThatCannotBeWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if key, err := Key(file, device, nil); err == nil || key != (wgtypes.Key{}) {
		t.Errorf("a key that is not durable is returned: %v", err)
	}
}

func TestKeyFileOf(t *testing.T) {
	for name, want := range map[string]string{
		"wireguard.c2.key": "wireguard.c2", "wg.0123456789.key": "wg.0123456789", "wireguard.c2.key.123456": "wireguard.c2",
		"wireguard.c2": "", "notes.txt": "", "keys": "",
	} {
		if got, ok := KeyFileOf(name); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v", name, got, ok)
		}
	}
}
