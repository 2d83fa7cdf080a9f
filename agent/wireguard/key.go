package wireguard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// Key returns the private key of a device from DIR/DEVICE.key, base64. Where there is no such file it
// writes one: with the key that the device has, where it stands with one and only the file was
// lost, since that is what peers know the node by; else with a new one. The key is durable when Key
// returns. A file that is there and holds no key is an error and stays as it is: it may be the
// only copy of what peers know.
func Key(dir, device string, stands *Device) (wgtypes.Key, error) {
	key, err := ReadKey(dir, device)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if stands != nil && stands.PrivateKey != (wgtypes.Key{}) {
		key = stands.PrivateKey
	} else if key, err = wgtypes.GeneratePrivateKey(); err != nil {
		return wgtypes.Key{}, fmt.Errorf("private key of %s: %w", device, err)
	}
	path := keyPath(dir, device)
	if err := writeKey(path, key); err != nil {
		return wgtypes.Key{}, fmt.Errorf("writing private key %s: %w", path, err)
	}
	return key, nil
}

// keySuffix is what the names of key files end with, and those of files that were being written
// go on after.
const keySuffix = ".key"

func keyPath(dir, device string) string { return filepath.Join(dir, device+keySuffix) }

// ReadKey returns the private key of a device. The error is fs.ErrNotExist where there is no file.
func ReadKey(dir, device string) (wgtypes.Key, error) {
	path := keyPath(dir, device)
	data, err := os.ReadFile(path)
	if err != nil {
		return wgtypes.Key{}, fmt.Errorf("private key of %s: %w", device, err)
	}
	key, err := wgtypes.ParseKey(strings.TrimSpace(string(data)))
	if err != nil {
		// The content is not part of the error: it may be most of a key.
		return wgtypes.Key{}, fmt.Errorf("private key of %s: %s holds no key (32 bytes in base64): put the right one back, or move the file away to have a new one made", device, path)
	}
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
		if err := os.Chmod(path, 0o600); err != nil {
			return wgtypes.Key{}, fmt.Errorf("private key of %s can be read by others: %w", device, err)
		}
	}
	return key, nil
}

// writeKey writes a key so that the file is there whole or not at all.
func writeKey(path string, key wgtypes.Key) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already when all went well
	_, err = f.WriteString(key.String())
	if err := errors.Join(err, f.Chmod(0o600), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
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
