package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"github.com/kube-semaphore/semaphore/agent/wireguard"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// Cleanup returns a node to how it was: it takes out every device that can be an agent's (by name and
// alias), every route that bears our protocol number, and with keys also the private keys. What it removes
// it prints; what is gone already is no error. keyDir is where the keys are.
func Cleanup(out io.Writer, keyDir string, keys bool) error {
	host, err := wireguard.NewHost("auto")
	if err != nil {
		return err
	}
	defer host.Close()
	links, err := wireguard.Links()
	if err != nil {
		return err
	}
	var failed []error
	for _, l := range links {
		if !naming.IsDevice(l.Name, l.Alias) {
			continue
		}
		if err := host.Delete(l.Name); err != nil {
			failed = append(failed, err)
			continue
		}
		fmt.Fprintf(out, "removed device %s\n", l.Name)
	}
	// Those that went with their device are gone by now; these have lost it.
	routes, err := wireguard.DeleteOwnRoutes()
	failed = append(failed, err)
	for _, r := range routes {
		fmt.Fprintf(out, "removed route %s\n", r)
	}
	failed = append(failed, removeSockets(out))
	if keys {
		failed = append(failed, removeKeys(out, keyDir))
	}
	return errors.Join(failed...)
}

// shortened is the name of a device whose cluster's name is too long for one.
var shortened = regexp.MustCompile(`^wg\.[0-9a-f]{10}$`)

// canBeOurs says whether a file that bears a device's name can be an agent's: there may be no device to ask.
func canBeOurs(device string) bool {
	return naming.IsDevice(device, "") || shortened.MatchString(device)
}

// removeSockets takes away what processes of devices that were killed have left.
func removeSockets(out io.Writer) error {
	devices, err := wireguard.Sockets()
	failed := []error{err}
	for _, device := range devices {
		if !canBeOurs(device) {
			continue
		}
		removed, err := wireguard.RemoveDeadSocket(device)
		failed = append(failed, err)
		if removed {
			fmt.Fprintf(out, "removed socket of %s\n", device)
		}
	}
	return errors.Join(failed...)
}

// removeKeys removes the keys of devices, also such as were only half written, and nothing else that may be in the directory.
func removeKeys(out io.Writer, dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("private keys: %w", err)
	}
	var failed []error
	for _, e := range entries {
		device, ok := wireguard.KeyFileOf(e.Name())
		if !ok || !canBeOurs(device) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			failed = append(failed, err)
			continue
		}
		fmt.Fprintf(out, "removed private key %s\n", e.Name())
	}
	return errors.Join(failed...)
}
