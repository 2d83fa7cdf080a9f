// Package durable has files still be there, under the names they were given, after the machine has lost its power.
//
// It is a leaf: it knows files only, and imports nothing of ours.
package durable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Rename gives a file that is on the disk another name, in the place of whatever has it, and gets that to the disk. An error of the
// latter leaves the file under its new name.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(to))
}

// SyncDir gets the names of a directory's files to the disk: fsync(2) of a file says nothing of its name.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("getting %s to the disk: %w", dir, err)
	}
	return nil
}
