package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kube-semaphore/semaphore/agent/wireguard"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// socketDir is where wireguard-go keeps the sockets of its devices.
const socketDir = "/var/run/wireguard"

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
		failed = append(failed, removeSocket(l.Name))
	}
	// Those that went with their device are gone by now; these have lost it.
	routes, err := wireguard.DeleteOwnRoutes()
	failed = append(failed, err)
	for _, r := range routes {
		fmt.Fprintf(out, "removed route %s\n", r)
	}
	if keys {
		failed = append(failed, removeKeys(out, keyDir))
	}
	return errors.Join(failed...)
}

// removeSocket takes away what a wireguard-go that was killed has left.
func removeSocket(device string) error {
	err := os.Remove(filepath.Join(socketDir, device+".sock"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeKeys removes the keys of devices, and nothing else that may be in the directory.
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
		device, ok := strings.CutSuffix(e.Name(), ".key")
		if !ok || !strings.HasPrefix(device, "wireguard.") && !strings.HasPrefix(device, "wg.") {
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
