package agent

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/kube-semaphore/semaphore/agent/guard"
	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/stream"
	"github.com/kube-semaphore/semaphore/agent/traffic"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

type CleanupOptions struct {
	// Keys also removes the private keys.
	Keys bool
	// LeaveDevices keeps devices whose names semaphore-wireguard uses, with their peers and routes but without
	// semaphore's marks, so that semaphore-wireguard can continue with them.
	LeaveDevices bool
}

// Cleanup removes and prints the objects of agents on a node: devices, routes and rules with semaphore's protocol
// number in every table, the guard, the state file and, if asked, the private keys. An object that no longer exists is
// not an error. It continues after one that it cannot remove, and fails then. Devices and keys of semaphore-wireguard
// that no agent adopted remain.
func Cleanup(out io.Writer, cfg *config.Agent, options CleanupOptions) error {
	if options.Keys && options.LeaveDevices {
		return errors.New("cleanup: keys cannot be removed while devices remain: these would have no key after a reboot")
	}
	host, err := kernel.NewHost("auto", "", tableOf(cfg))
	if err != nil {
		return err
	}
	defer host.Close()
	links, err := host.Links()
	if err != nil {
		return err
	}
	var failed []error
	var released []string
	foreign := map[string]bool{}
	for _, l := range links {
		if !naming.IsDevice(l.Name, l.Alias) {
			continue
		}
		if ours, err := isOurs(host, l); err != nil || !ours {
			foreign[l.Name] = true
			reason := "it is not an agent's"
			if err != nil {
				reason = err.Error()
			}
			fmt.Fprintf(out, "left interface %s: %s\n", l.Name, reason)
			continue
		}
		if options.LeaveDevices && canBeSemaphoreWireguards(l.Name) {
			routes, err := host.Release(l.Name)
			failed = append(failed, err)
			fmt.Fprintf(out, "left device %s unchanged, without semaphore's marks, and its routes %v, in the main table\n",
				l.Name, routes)
			released = append(released, l.Name)
			continue
		}
		if err := host.Delete(l.Name); err != nil {
			failed = append(failed, err)
			continue
		}
		fmt.Fprintf(out, "removed device %s\n", l.Name)
	}
	removed := func(what string) func([]string, error) {
		return func(all []string, err error) {
			failed = append(failed, err)
			for _, one := range all {
				fmt.Fprintf(out, "removed %s%s\n", what, one)
			}
		}
	}
	removed("nftables table ")(traffic.Remove())
	removed("")(kernel.RemoveRouting()) // routes into a removed device are removed with it
	for _, name := range released {     // after the routes whose source they are
		failed = append(failed, host.Unmark(name))
	}
	removed("")(guard.RemoveTable()) // last: a device without its last address has no route for a moment
	removed("socket of ")(kernel.RemoveDeadSockets(canBeOurs))
	removed("state file ")(stream.RemoveState(cfg.StateFile))
	if options.Keys {
		which := func(device string) bool { return canBeOurs(device) && !foreign[device] }
		removed("private key ")(kernel.RemoveKeys(cfg.WGKeyPath, which))
	}
	return errors.Join(failed...)
}

// canBeSemaphoreWireguards reports whether semaphore-wireguard could have given a device its name, which it never
// shortens.
func canBeSemaphoreWireguards(device string) bool { return naming.IsDevice(device, "") }

// isOurs reports whether an agent created or adopted a device: by its alias, or by its routes and rules.
func isOurs(host *kernel.Host, l kernel.Link) (bool, error) {
	if cluster, ok := strings.CutPrefix(l.Alias, naming.DeviceAlias("")); ok && naming.Device(cluster) == l.Name {
		return true, nil
	}
	existing, err := host.Device(l.Name)
	if existing == nil || err != nil {
		return false, err
	}
	cluster := strings.TrimPrefix(l.Name, naming.DeviceAlias(""))
	return plan.OwnerOf(cluster, existing) == plan.Ours, nil
}

// shortened matches the name of a device whose cluster's name is too long for a network interface.
var shortened = regexp.MustCompile(`^wg\.[0-9a-f]{10}$`)

// canBeOurs reports whether a key file can be an agent's by its name: its device may not exist.
func canBeOurs(device string) bool {
	return naming.IsDevice(device, "") || shortened.MatchString(device)
}
