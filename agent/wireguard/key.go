package wireguard

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/semaphore/internal/durable"
)

// Keys are the private keys of the node's devices, each in DIR/DEVICE.key: base64, mode 0600, no newline, as
// semaphore-wireguard left them. A key is in its file, and the file on the disk, before anyone is told of its
// public half. It is not safe for concurrent use.
type Keys struct {
	dir string
	// unsynced says that a file was put in its place and perhaps not on the disk.
	unsynced bool
}

// NewKeys are the keys in a directory, which is made with the first of them.
func NewKeys(dir string) *Keys { return &Keys{dir: dir} }

// StoredKey is the private key of a device.
type StoredKey struct {
	Private wgtypes.Key
	// Created is when the key was made: the time of its file, which survives whatever is written back.
	Created time.Time
	// Durable says that the key will be there after the next reboot. A key that is not is good for the device that
	// has it, and peers must not be told of it.
	Durable bool
	// Problem is what is wrong with the file, nil for nothing.
	Problem error
}

// Of returns the key of a device, whose file it makes where there is none: with the key that the device has, where
// it stands with one, since that is what peers know the node by; else with a new one.
//
// A file that is there and holds no key is never written over. Where the device has a key, that one goes on: it is
// saved, and what was in its place kept beside it as DEVICE.key.damaged-TIME, which is a problem until someone takes
// it away. Where it has none, the file may be the only trace of what peers know, and is an error.
func (k *Keys) Of(device string, stands *Device) (StoredKey, error) {
	tidied := k.tidy(device)
	key, err := k.read(device)
	live := stands != nil && stands.PrivateKey != (wgtypes.Key{})
	switch {
	case err == nil && k.unsynced:
		key.Problem = k.sync()
		key.Durable = key.Problem == nil
	case err == nil:
	case live:
		key, err = k.keep(device, stands.PrivateKey, err), nil
	case errors.Is(err, fs.ErrNotExist):
		key, err = k.make(device)
	}
	if err != nil {
		return StoredKey{}, fmt.Errorf("private key of %s: %w", device, err)
	}
	if key.Problem == nil {
		key.Problem = errors.Join(tidied, k.damage(device))
	}
	if key.Problem != nil {
		key.Problem = fmt.Errorf("private key of %s: %w", device, key.Problem)
	}
	return key, nil
}

// Replace makes a new key for a device in place of the one in its file, of which nothing is left. When it fails the old
// one is still there, unless the key returned is not zero: that one is in its place, and not known to be on the disk.
func (k *Keys) Replace(device string) (StoredKey, error) {
	key, err := k.make(device)
	if err != nil {
		return key, fmt.Errorf("new private key of %s: %w", device, err)
	}
	return key, nil
}

// keySuffix is what the names of key files end with, and those of files that were being written, or are damaged,
// go on after.
const (
	keySuffix = ".key"
	damaged   = "damaged-"
)

// maxKeyFile is more than any key file has.
const maxKeyFile = 4096

func (k *Keys) path(device string) string { return filepath.Join(k.dir, device+keySuffix) }

// ReadKey returns the private key of a device. The error is fs.ErrNotExist where there is no file.
func ReadKey(dir, device string) (wgtypes.Key, error) {
	key, err := NewKeys(dir).read(device)
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("private key of %s: %w", device, err)
	}
	return key.Private, nil
}

// read reads a key from its file, and closes that to others where it is open to them.
func (k *Keys) read(device string) (StoredKey, error) {
	path := k.path(device)
	// A symbolic link, a device or a pipe in place of the file is never followed, or waited for.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrPermission) && os.Chmod(path, 0o600) == nil {
		// Root without CAP_DAC_OVERRIDE is bound by modes, like everyone.
		f, err = os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	}
	switch {
	case errors.Is(err, unix.ELOOP):
		return StoredKey{}, fmt.Errorf("%s is a symbolic link: put the file itself there, or move the link away to have a new key made", path)
	case err != nil:
		return StoredKey{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return StoredKey{}, err
	}
	if !info.Mode().IsRegular() {
		return StoredKey{}, fmt.Errorf("%s is no file but a %s: put the file with the key there, or move it away to have a new key made", path, kindOf(info.Mode()))
	}
	data, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return StoredKey{}, err
	}
	key, err := wgtypes.ParseKey(strings.TrimSpace(string(data)))
	if err != nil || key == (wgtypes.Key{}) {
		// The content is not part of the error: it may be most of a key.
		return StoredKey{}, fmt.Errorf("%s holds no key (32 bytes in base64): put the right one back, or move the file away to have a new one made", path)
	}
	out := StoredKey{Private: key, Created: info.ModTime(), Durable: true}
	if info.Mode().Perm()&0o077 != 0 {
		if err := f.Chmod(0o600); err != nil {
			out.Problem = fmt.Errorf("%s can be read by others, and that cannot be changed: make it root's, with mode 0600, and rotate the key: %w", path, err)
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

// make makes a key, and the file for it.
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

// keep saves the key that a device has, why being what is wrong with its file. Failing is no error: the device can do
// without its file until the next reboot.
func (k *Keys) keep(device string, live wgtypes.Key, why error) StoredKey {
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
		out.Problem = fmt.Errorf("the device's own cannot be saved, and is lost with the next reboot: %w (%w)", err, why)
		return out
	}
	out.Durable = true
	return out
}

// setAside gives what is at path a second name beside it, or, where a directory can have only one, another one.
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

// tidy removes what writers that were killed have left: each such file holds a key that was never used, and takes up
// space.
func (k *Keys) tidy(device string) error {
	unfinished, err := k.beside(device, func(tail string) bool { return strings.Trim(tail, "0123456789") == "" })
	for _, path := range unfinished {
		if gone := os.Remove(path); !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

// damage tells of damaged files that were set aside; nil for none.
func (k *Keys) damage(device string) error {
	found, err := k.beside(device, func(tail string) bool { return strings.HasPrefix(tail, damaged) })
	if err != nil || len(found) == 0 {
		return err
	}
	return fmt.Errorf("the file was damaged, and has been written again with the key that the device had: look at %s, and remove it", strings.Join(found, ", "))
}

// beside are the files whose names go on after that of a device's key with a dot and what which is true for.
func (k *Keys) beside(device string, which func(tail string) bool) (paths []string, err error) {
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

// write writes a key so that its file is there whole and on the disk, or as it was. created becomes its time, where it
// is not zero; first is done just before the file takes the place of what is there. placed says that it has: an error
// is then one of getting that to the disk.
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

// sync gets the directory to the disk, and with it the names of its files.
func (k *Keys) sync() error {
	k.unsynced = true
	if err := durable.SyncDir(k.dir); err != nil {
		return err
	}
	k.unsynced = false
	return nil
}

// KeyFileOf returns the device whose private key a file of this name holds, or was to hold when
// whoever wrote it was ended.
func KeyFileOf(name string) (device string, ok bool) {
	if device, ok = strings.CutSuffix(name, keySuffix); ok {
		return device, true
	}
	if device, _, ok = strings.Cut(name, keySuffix+"."); ok {
		return device, true
	}
	return "", false
}
