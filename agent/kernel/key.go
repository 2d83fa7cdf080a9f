package kernel

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kube-semaphore/semaphore/internal/volume"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// Keys are the private keys of the node's devices, each in DIR/DEVICE.key: base64, mode 0600, no newline, as
// semaphore-wireguard left them. A key is in its file, and the file on the disk, before its public key is published.
// It is not safe for concurrent use.
type Keys struct {
	dir string
	// unsynced means that a file was replaced and may not be on the disk.
	unsynced bool
}

// NewKeys returns the keys in a directory, which is created with the first of them.
func NewKeys(dir string) *Keys { return &Keys{dir: dir} }

type StoredKey struct {
	Private wgtypes.Key
	// Created is when the key was generated: the time of its file, which is preserved when the file is written again.
	Created time.Time
	// Durable means that the key survives a reboot. A key that does not may be used by the device that has it, but
	// must not be published.
	Durable bool
	// Problem is the fault of the file, nil for none.
	Problem error
}

// Of returns the key of a device. If there is no file it creates it, with the key of an existing device, as peers know
// the node by it, else with a new one.
//
// An existing file without a valid key is never overwritten. If the device has a key, it remains in use: it is saved,
// and the old file is kept beside it as DEVICE.key.damaged-TIME, which is a problem until an operator removes it.
// Otherwise the file may be the only trace of the key that peers know, and is an error.
func (k *Keys) Of(device string, existing *Device) (StoredKey, error) {
	tidied := k.removeUnfinished(device)
	key, err := k.read(device)
	live := existing != nil && existing.PrivateKey != (wgtypes.Key{})
	switch {
	case err == nil && k.unsynced:
		key.Problem = k.sync()
		key.Durable = key.Problem == nil
	case err == nil:
	case live:
		key, err = k.saveLiveKey(device, existing.PrivateKey, err), nil
	case errors.Is(err, fs.ErrNotExist):
		key, err = k.make(device)
	}
	if err != nil {
		return StoredKey{}, fmt.Errorf("private key of %s: %w", device, err)
	}
	if key.Problem == nil {
		key.Problem = errors.Join(tidied, k.damagedFiles(device))
	}
	if key.Problem != nil {
		key.Problem = fmt.Errorf("private key of %s: %w", device, key.Problem)
	}
	return key, nil
}

// Replace generates a new key for a device in place of the one in its file, which is lost. It fails if that cannot be
// written: the old key is still in place, unless the returned key is not zero; then the new one is, but may not be on
// the disk.
func (k *Keys) Replace(device string) (StoredKey, error) {
	key, err := k.make(device)
	if err != nil {
		return key, fmt.Errorf("new private key of %s: %w", device, err)
	}
	return key, nil
}

// keySuffix ends the names of key files; those of unfinished and of damaged files continue after it.
const (
	keySuffix = ".key"
	damaged   = "damaged-"
)

const maxKeyFile = 4096

func (k *Keys) path(device string) string { return filepath.Join(k.dir, device+keySuffix) }

// Read returns the private key of a device. It fails with fs.ErrNotExist if there is no file, and if the file has no
// valid key.
func (k *Keys) Read(device string) (wgtypes.Key, error) {
	key, err := k.read(device)
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("private key of %s: %w", device, err)
	}
	return key.Private, nil
}

// read reads a key from its file, and sets mode 0600 if others have access.
func (k *Keys) read(device string) (StoredKey, error) {
	path := k.path(device)
	// The file is never opened through a symbolic link, and no device or pipe blocks.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrPermission) && os.Chmod(path, 0o600) == nil {
		// Root without CAP_DAC_OVERRIDE is subject to file modes.
		f, err = os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	}
	switch {
	case errors.Is(err, unix.ELOOP):
		return StoredKey{}, fmt.Errorf("%s is a symbolic link: put the file itself there, or move the link away so that "+
			"the agent generates a new key", path)
	case err != nil:
		return StoredKey{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return StoredKey{}, err
	}
	if !info.Mode().IsRegular() {
		return StoredKey{}, fmt.Errorf("%s is a %s and not a file: put the file with the key there, or move it away so "+
			"that the agent generates a new key", path, kindOf(info.Mode()))
	}
	data, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return StoredKey{}, err
	}
	key, err := wgtypes.ParseKey(strings.TrimSpace(string(data)))
	if err != nil || key == (wgtypes.Key{}) {
		// The content is not part of the error: it may be most of a key.
		return StoredKey{}, fmt.Errorf("%s contains no key (32 bytes in base64): restore the right one, or move the file "+
			"away so that the agent generates a new key", path)
	}
	out := StoredKey{Private: key, Created: info.ModTime(), Durable: true}
	if info.Mode().Perm()&0o077 != 0 {
		if err := f.Chmod(0o600); err != nil {
			out.Problem = fmt.Errorf("%s can be read by others, and that cannot be changed: make it root's, with mode 0600, "+
				"and rotate the key: %w", path, err)
		}
	}
	return out, nil
}

func kindOf(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "directory"
	case mode&fs.ModeNamedPipe != 0:
		return "pipe"
	}
	return "special file"
}

func (k *Keys) make(device string) (StoredKey, error) {
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return StoredKey{}, err
	}
	placed, err := k.write(device, key, time.Time{}, nil)
	if err != nil && !placed {
		return StoredKey{}, err
	}
	return StoredKey{Private: key, Created: time.Now(), Durable: err == nil}, err
}

// saveLiveKey saves the key of a device; why is the fault of its file. A failure is not an error: the device works
// without its file until the next reboot.
func (k *Keys) saveLiveKey(device string, live wgtypes.Key, why error) StoredKey {
	out := StoredKey{Private: live, Created: time.Now()}
	var first func() error
	if !errors.Is(why, fs.ErrNotExist) {
		path := k.path(device)
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
			out.Created = info.ModTime()
		}
		first = func() error { return setAside(path) }
	}
	if _, err := k.write(device, live, out.Created, first); err != nil {
		out.Problem = fmt.Errorf("the device's key cannot be saved, and will be lost with the next reboot: %w (%w)", err, why)
		return out
	}
	out.Durable = true
	return out
}

// setAside gives the file at path a second name beside it, or, for a directory, another one.
func setAside(path string) error {
	aside := path + "." + damaged + time.Now().UTC().Format("20060102T150405.000000000Z")
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return os.Rename(path, aside)
	case info.Mode().IsRegular():
		if err := os.Chmod(path, 0o600); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return os.Link(path, aside)
}

// removeUnfinished removes files of writers that were killed: each contains a key that was never used.
func (k *Keys) removeUnfinished(device string) error {
	unfinished, err := k.filesBeside(device, func(tail string) bool { return strings.Trim(tail, "0123456789") == "" })
	for _, path := range unfinished {
		if gone := os.Remove(path); !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

func (k *Keys) damagedFiles(device string) error {
	found, err := k.filesBeside(device, func(tail string) bool { return strings.HasPrefix(tail, damaged) })
	if err != nil || len(found) == 0 {
		return err
	}
	return fmt.Errorf("the file was damaged, and the agent has written it again with the device's key: examine %s, and "+
		"remove it", strings.Join(found, ", "))
}

// filesBeside returns the files whose names continue after that of a device's key with a dot and a tail for which the
// function returns true.
func (k *Keys) filesBeside(device string, which func(tail string) bool) (paths []string, err error) {
	entries, err := os.ReadDir(k.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries { // in the order of their names
		if tail, ok := strings.CutPrefix(e.Name(), device+keySuffix+"."); ok && which(tail) {
			paths = append(paths, filepath.Join(k.dir, e.Name()))
		}
	}
	return paths, nil
}

// write writes a key atomically and durably. created becomes the file's time, if it is not zero; first is called just
// before the file replaces the old one. placed means that it has replaced it: then an error concerns its durability.
func (k *Keys) write(device string, key wgtypes.Key, created time.Time, first func() error) (placed bool, err error) {
	path := k.path(device)
	if err := os.MkdirAll(k.dir, 0o700); err != nil {
		return false, err
	}
	f, err := os.CreateTemp(k.dir, filepath.Base(path)+".*")
	if err != nil {
		return false, err
	}
	defer func() {
		if !placed {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.WriteString(key.String())
	if !created.IsZero() {
		err = errors.Join(err, os.Chtimes(f.Name(), created, created))
	}
	if err := errors.Join(err, f.Chmod(0o600), f.Sync(), f.Close()); err != nil {
		return false, fmt.Errorf("writing %s: %w", path, err)
	}
	if first != nil {
		if err := first(); err != nil {
			return false, err
		}
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return false, err
	}
	return true, k.sync()
}

// sync writes the directory, and with it the names of its files, to the disk.
func (k *Keys) sync() error {
	k.unsynced = true
	if err := volume.SyncDir(k.dir); err != nil {
		return err
	}
	k.unsynced = false
	return nil
}

// RemoveKeys removes the keys of the devices that which selects, with partly written ones, and nothing else in the
// directory. It returns the names of the files. It continues after a file that cannot be removed, and returns these
// errors.
func RemoveKeys(dir string, which func(device string) bool) (removed []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("private keys: %w", err)
	}
	for _, e := range entries {
		device, ok := keyFileOf(e.Name())
		if !ok || !which(device) {
			continue
		}
		if gone := os.Remove(filepath.Join(dir, e.Name())); gone != nil {
			err = errors.Join(err, gone)
			continue
		}
		removed = append(removed, e.Name())
	}
	return removed, err
}

// keyFileOf returns the device whose private key a file of this name contains, or would contain if its writer had
// finished.
func keyFileOf(name string) (device string, ok bool) {
	if device, ok = strings.CutSuffix(name, keySuffix); ok {
		return device, true
	}
	if device, _, ok = strings.Cut(name, keySuffix+"."); ok {
		return device, true
	}
	return "", false
}
