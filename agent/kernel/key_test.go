package kernel_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	. "github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/test/nodetest"
)

const device = "wireguard.c2"

func newKey(t *testing.T) wgtypes.Key {
	t.Helper()
	key, err := wgtypes.GeneratePrivateKey()
	must(t, err)
	return key
}

func TestKeyIsMadeOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	if _, err := NewKeys(dir).Read(device); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading a key that is not there: %v", err)
	}
	key, err := NewKeys(dir).Of(device, nil)
	must(t, err)
	if !key.Durable || key.Problem != nil || time.Since(key.Created) > time.Minute {
		t.Errorf("durable %v, made %s, problem %v", key.Durable, key.Created, key.Problem)
	}
	again, err := NewKeys(dir).Of(device, nil)
	if err != nil || again.Private != key.Private || key.Private == (wgtypes.Key{}) || !again.Durable {
		t.Errorf("the second time: %v, the same: %v, durable: %v", err, again.Private == key.Private, again.Durable)
	}
	path := filepath.Join(dir, device+".key")
	data, err := os.ReadFile(path)
	if err != nil || string(data) != key.Private.String() {
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

func TestExistingKeyFileIsUsed(t *testing.T) {
	for _, mode := range []fs.FileMode{0o600, 0o644, 0o400, 0} {
		dir := t.TempDir()
		path := filepath.Join(dir, device+".key")
		key := newKey(t)
		// The form in which semaphore-wireguard, and people, leave the file.
		must(t, os.WriteFile(path, []byte(key.String()+"\n"), 0o600))
		must(t, os.Chmod(path, mode))
		made := time.Now().Add(-48 * time.Hour).Truncate(time.Second)
		must(t, os.Chtimes(path, made, made))
		got, err := NewKeys(dir).Of(device, nil)
		if err != nil || got.Private != key || !got.Durable || got.Problem != nil {
			t.Errorf("mode %o: %v, the same: %v, durable: %v, problem: %v", mode, err, got.Private == key, got.Durable,
				got.Problem)
		}
		if !got.Created.Equal(made) {
			t.Errorf("mode %o: made %s; want the time of the file, %s", mode, got.Created, made)
		}
		if info, _ := os.Stat(path); info.Mode()&0o077 != 0 {
			t.Errorf("mode %v: others can read it", info.Mode())
		}
	}
}

// damages create different things in the place of a key file.
var damages = map[string]func(path string) error{
	"empty":     func(path string) error { return os.WriteFile(path, nil, 0o600) },
	"corrupt":   func(path string) error { return os.WriteFile(path, []byte("damaged"), 0o644) },
	"too short": func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("A"), 43), 0o600) },
	"zero":      func(path string) error { return os.WriteFile(path, []byte(wgtypes.Key{}.String()), 0o600) },
	"too long":  func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("A"), 1<<20), 0o600) },
	"directory": func(path string) error { return os.Mkdir(path, 0o700) },
	"pipe":      func(path string) error { return unix.Mkfifo(path, 0o600) },
	"link": func(path string) error {
		key, err := wgtypes.GeneratePrivateKey()
		return errors.Join(err, os.WriteFile(path+"-elsewhere", []byte(key.String()), 0o600),
			os.Symlink(path+"-elsewhere", path))
	},
	"link to nowhere": func(path string) error { return os.Symlink(path+"-elsewhere", path) },
}

// what describes what is at a path, as far as it must not be lost.
func what(t *testing.T, path string) string {
	t.Helper()
	info, err := os.Lstat(path)
	must(t, err)
	text := info.Mode().Type().String() + " "
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		to, err := os.Readlink(path)
		must(t, err)
		text += to
	case info.Mode().IsRegular():
		data, err := os.ReadFile(path)
		must(t, err)
		text += string(data)
	}
	return text
}

// TestDamagedKeyStays (F22): without a device, the file may be the only trace of the key that peers know.
func TestDamagedKeyStays(t *testing.T) {
	for name, damage := range damages {
		dir := t.TempDir()
		path := filepath.Join(dir, device+".key")
		must(t, damage(path))
		before := what(t, path)
		for _, stands := range []*Device{nil, {}} { // the second has no key yet
			key, err := NewKeys(dir).Of(device, stands)
			if err == nil || errors.Is(err, fs.ErrNotExist) || key.Private != (wgtypes.Key{}) {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "generates a new") ||
				strings.Contains(err.Error(), "AAAA") {
				t.Errorf("%s: the error names neither file nor fix, or what is in it: %v", name, err)
			}
		}
		if after := what(t, path); after != before {
			t.Errorf("%s: it was touched", name)
		}
	}
}

// TestDamagedKeyIsSavedFromTheDevice (F22): a device exists with the key that peers know.
func TestDamagedKeyIsSavedFromTheDevice(t *testing.T) {
	for name, damage := range damages {
		dir := t.TempDir()
		path := filepath.Join(dir, device+".key")
		must(t, damage(path))
		before := what(t, path)
		info, err := os.Lstat(path)
		must(t, err)
		stands := &Device{PrivateKey: newKey(t)}
		keys := NewKeys(dir)
		key, err := keys.Of(device, stands)
		if err != nil || key.Private != stands.PrivateKey || !key.Durable || key.Problem == nil {
			t.Errorf("%s: %v, the device's: %v, durable: %v, problem: %v", name, err, key.Private == stands.PrivateKey,
				key.Durable, key.Problem)
			continue
		}
		if saved, err := NewKeys(dir).Read(device); err != nil || saved != stands.PrivateKey {
			t.Errorf("%s: in the file: %v, the device's: %v", name, err, saved == stands.PrivateKey)
		}
		aside, _ := filepath.Glob(path + ".damaged-*")
		if len(aside) != 1 {
			t.Errorf("%s: set aside: %v", name, aside)
			continue
		}
		if after := what(t, aside[0]); after != before {
			t.Errorf("%s: it was not kept as it was", name)
		}
		if was, err := os.Lstat(aside[0]); err != nil || was.Mode().IsRegular() && was.Mode() != 0o600 {
			t.Errorf("%s: %v, mode %v: others can read most of a key", name, err, was.Mode())
		}
		if info.Mode().IsRegular() && !key.Created.Equal(info.ModTime()) {
			t.Errorf("%s: the key is as old as its file was, %s; not %s", name, info.ModTime(), key.Created)
		}
		// The error remains until an operator has looked at the file.
		again, err := keys.Of(device, stands)
		if err != nil || again.Problem == nil || !strings.Contains(again.Problem.Error(), aside[0]) || !again.Durable {
			t.Errorf("%s: then: %v, problem %v", name, err, again.Problem)
		}
		must(t, os.RemoveAll(aside[0]))
		if again, err = keys.Of(device, stands); err != nil || again.Problem != nil || again.Private != stands.PrivateKey {
			t.Errorf("%s: once looked at: %v, problem %v", name, err, again.Problem)
		}
	}
}

// TestLostKeyFileIsWrittenBack: the file is lost, and the device exists: peers know the device's key.
func TestLostKeyFileIsWrittenBack(t *testing.T) {
	dir := t.TempDir()
	stands := &Device{PrivateKey: wgtypes.Key{1, 2, 3}}
	key, err := NewKeys(dir).Of(device, stands)
	if err != nil || key.Private != stands.PrivateKey || !key.Durable || key.Problem != nil {
		t.Errorf("%v, the device's: %v, durable: %v, problem: %v", err, key.Private == stands.PrivateKey, key.Durable,
			key.Problem)
	}
	if kept, err := NewKeys(dir).Read(device); err != nil || kept != stands.PrivateKey {
		t.Errorf("the file: %v, the device's: %v", err, kept == stands.PrivateKey)
	}
	fresh, err := NewKeys(dir).Of("wireguard.c3", &Device{}) // it has no key yet
	if err != nil || fresh.Private == (wgtypes.Key{}) || fresh.Private == stands.PrivateKey {
		t.Errorf("a device that has none yet: %v", err)
	}
}

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	keys := NewKeys(dir)
	old, err := keys.Of(device, nil)
	must(t, err)
	path := filepath.Join(dir, device+".key")
	long := time.Now().Add(-1000 * time.Hour)
	must(t, os.Chtimes(path, long, long))
	fresh, err := keys.Replace(device)
	must(t, err)
	is, err := keys.Of(device, &Device{PrivateKey: old.Private}) // the file takes precedence
	if err != nil || is.Private != fresh.Private || is.Private == old.Private || !is.Durable ||
		time.Since(is.Created) > time.Minute {
		t.Errorf("%v, the new one: %v, made %s", err, is.Private == fresh.Private, is.Created)
	}
	entries, err := os.ReadDir(dir)
	must(t, err)
	if len(entries) != 1 {
		t.Errorf("%d files; want nothing of the old key", len(entries))
	}
}

// TestUnfinishedKeyFilesAreRemoved: the process that wrote a key was killed before it renamed the file.
func TestUnfinishedKeyFilesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, device+".key.123456"), []byte("half a k"), 0o600))
	others := []string{"wireguard.c22.key.123", device + ".key.bak", "notes"}
	for _, name := range others {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	_, err := NewKeys(dir).Of(device, nil)
	must(t, err)
	if exists(filepath.Join(dir, device+".key.123456")) {
		t.Error("what was not finished is still there")
	}
	for _, name := range others {
		if !exists(filepath.Join(dir, name)) {
			t.Errorf("%s is gone", name)
		}
	}
}

func TestKeyThatCannotBeWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	if key, err := NewKeys(file).Of(device, nil); err == nil || key.Private != (wgtypes.Key{}) {
		t.Errorf("a key that is not durable is returned: %v", err)
	}
}

// TestFullDisk (F21): the disk is full.
func TestFullDisk(t *testing.T) {
	nodetest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"))
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		path := filepath.Join(dir, device+".key")
		keys := NewKeys(dir)
		old, err := keys.Of(device, nil)
		must(t, err)
		fill := func() {
			t.Helper()
			f, err := os.OpenFile(filepath.Join(dir, "full"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
			must(t, err)
			defer f.Close()
			for size := 4096; size > 0; {
				if _, err := f.Write(make([]byte, size)); errors.Is(err, unix.ENOSPC) {
					size /= 2
				} else {
					must(t, err)
				}
			}
		}
		empty := func() { t.Helper(); must(t, os.Remove(filepath.Join(dir, "full"))) }
		nothingElse := func() {
			t.Helper()
			if all, _ := filepath.Glob(path + "?*"); len(all) != 0 {
				t.Errorf("left behind: %v", all)
			}
		}

		fill()
		if key, err := keys.Replace(device); !errors.Is(err, unix.ENOSPC) || key.Private != (wgtypes.Key{}) {
			t.Errorf("a new key on a full disk: %v", err)
		}
		if key, err := keys.Of(device, nil); err != nil || key.Private != old.Private || !key.Durable {
			t.Errorf("the old key: %v, the same: %v, durable: %v", err, key.Private == old.Private, key.Durable)
		}
		if key, err := keys.Of("wireguard.c3", nil); !errors.Is(err, unix.ENOSPC) || key.Private != (wgtypes.Key{}) {
			t.Errorf("a first key on a full disk: %v", err)
		}
		if exists(filepath.Join(dir, "wireguard.c3.key")) {
			t.Error("the file of a key that could not be written is there")
		}
		nothingElse()

		// The device continues with its key, which is reported to peers only once it is saved.
		empty()
		must(t, os.WriteFile(path, nil, 0o600))
		fill()
		stands := &Device{PrivateKey: old.Private}
		key, err := keys.Of(device, stands)
		if err != nil || key.Private != old.Private || key.Durable || !errors.Is(key.Problem, unix.ENOSPC) ||
			!strings.Contains(key.Problem.Error(), "contains no key") {
			t.Errorf("a damaged file on a full disk: %v, the device's: %v, durable: %v, problem: %v", err,
				key.Private == old.Private, key.Durable, key.Problem)
		}
		if what(t, path) != "---------- " {
			t.Error("the damaged file was touched")
		}
		nothingElse()
		empty()
		if key, err := keys.Of(device, stands); err != nil || key.Private != old.Private || !key.Durable {
			t.Errorf("with space again: %v, the device's: %v, durable: %v", err, key.Private == old.Private, key.Durable)
		}
	})
}

// TestRemoveKeys: the keys of the selected devices go, with partly written and damaged ones, and nothing else.
func TestRemoveKeys(t *testing.T) {
	dir := t.TempDir()
	theirs := []string{"wireguard.c2.key", "wireguard.c2.key.123456",
		"wireguard.c2.key.damaged-20260102T150405.000000001Z"}
	others := []string{"keys", "notes.txt", "wg.0123456789.key", "wireguard.c2"}
	for _, name := range slices.Concat(theirs, others) {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	removed, err := RemoveKeys(dir, func(device string) bool { return device == "wireguard.c2" })
	if err != nil || !slices.Equal(removed, theirs) {
		t.Errorf("removed %q, %v", removed, err)
	}
	left, err := os.ReadDir(dir)
	must(t, err)
	for i, e := range left {
		if e.Name() != others[i] {
			t.Errorf("left is %s; want %s", e.Name(), others[i])
		}
	}
	if removed, err := RemoveKeys(filepath.Join(dir, "none"), nil); err != nil || removed != nil {
		t.Errorf("without a directory: %q, %v", removed, err)
	}
}
