package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// This file makes files survive a power loss under the names they were given.

// Rename renames a file that is already on the disk, replaces a file with that name, and syncs the directory. It fails
// if one of these fails; after an error of the sync the file has its new name.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(to))
}

// SyncDir syncs the names of a directory's files to the disk: fsync(2) of a file does not cover its name. It fails if
// the directory cannot be opened or synced.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("syncing %s to the disk: %w", dir, err)
	}
	return nil
}
