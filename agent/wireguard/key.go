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

// Key returns the private key of a device from DIR/DEVICE.key, base64, and makes one where
// there is none. The key is durable when Key returns. A file that is there and holds no key
// is an error and stays as it is: it may be the only copy of what peers know the node by.
func Key(dir, device string) (wgtypes.Key, error) {
	path := filepath.Join(dir, device+".key")
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return newKey(dir, path)
	case err != nil:
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

// newKey writes a key so that the file is there whole or not at all.
func newKey(dir, path string) (_ wgtypes.Key, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("making private key %s: %w", path, err)
		}
	}()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return wgtypes.Key{}, err
	}
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return wgtypes.Key{}, err
	}
	f, err := os.CreateTemp(dir, filepath.Base(path)+".*")
	if err != nil {
		return wgtypes.Key{}, err
	}
	defer os.Remove(f.Name()) // gone already when all went well
	_, err = f.WriteString(key.String())
	if err := errors.Join(err, f.Chmod(0o600), f.Sync(), f.Close()); err != nil {
		return wgtypes.Key{}, err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return wgtypes.Key{}, err
	}
	d, err := os.Open(dir)
	if err != nil {
		return wgtypes.Key{}, err
	}
	return key, errors.Join(d.Sync(), d.Close())
}
