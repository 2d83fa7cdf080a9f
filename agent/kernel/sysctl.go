package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const settingsRoot = "/proc/sys/net"

// Settings are settings by name as in sysctl(8), with slashes, without "net/": a device's name may contain dots. A
// setting that the kernel does not have is missing.
type Settings map[string]int

type RoutedDevice struct {
	Device  string
	Subnets []netip.Prefix
	// Shadowed means that routes lead packets for some of the subnets past the device.
	Shadowed bool
}

func deviceSetting(device, setting string) string { return "ipv4/conf/" + device + "/" + setting }

const (
	forward4      = "ipv4/ip_forward"
	forward6      = "ipv6/conf/all/forwarding"
	reverseFilter = "ipv4/conf/all/rp_filter"
)

// Settings reads the settings on which forwarding for some devices depends, without missing ones. It fails for one that
// it cannot read or that is no number.
func (*Host) Settings(networks []RoutedDevice) (Settings, error) {
	names := []string{forward4, forward6, reverseFilter}
	for _, n := range networks {
		names = append(names, deviceSetting(n.Device, "forwarding"), deviceSetting(n.Device, "rp_filter"))
	}
	out := Settings{}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(settingsRoot, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a device that is not there yet, or a kernel without IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("settings of the kernel: %w", err)
		}
		value, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return nil, fmt.Errorf("settings of the kernel: net/%s: %w", name, err)
		}
		out[name] = value
	}
	return out, nil
}

// strictFilter is the value of rp_filter that drops a packet unless the route to its source uses the interface on which
// it arrived.
const strictFilter = 1

// strict reports whether the filter of an interface is: the greater of its own value and that of all counts.
func (v Settings) strict(device string) bool {
	own, known := v[deviceSetting(device, "rp_filter")]
	return known && max(v[reverseFilter], own) == strictFilter
}

// SettingProblems returns the settings that prevent packets from passing, and the fix; a sentence each. It ignores
// unknown settings.
func SettingProblems(v Settings, networks []RoutedDevice) []string {
	off := func(name string) bool { value, known := v[name]; return known && value == 0 }
	has := func(wanted func(netip.Addr) bool) bool {
		return slices.ContainsFunc(networks, func(n RoutedDevice) bool {
			return slices.ContainsFunc(n.Subnets, func(s netip.Prefix) bool { return wanted(s.Addr()) })
		})
	}
	var out []string
	v4 := has(netip.Addr.Is4)
	if v4 && off(forward4) {
		out = append(out, "net.ipv4.ip_forward is 0: the node drops all packets between its pods and remote ones; set it "+
			"to 1")
	}
	if has(netip.Addr.Is6) && off(forward6) {
		out = append(out, "net.ipv6.conf.all.forwarding is 0: the node drops all IPv6 packets between its pods and remote "+
			"ones; set it to 1")
	}
	for _, n := range networks {
		if v4 && !off(forward4) && off(deviceSetting(n.Device, "forwarding")) {
			out = append(out, fmt.Sprintf("net/ipv4/conf/%s/forwarding is 0: the node drops all packets of remote pods to its "+
				"own; set it to 1", n.Device))
		}
		// While no route bypasses the device, a strict filter drops nothing.
		if v.strict(n.Device) && n.Shadowed {
			out = append(out, fmt.Sprintf("rp_filter is strict on %[1]s, and routes lead past it: the node drops packets of "+
				"those remote pods; remove the routes, or set net/ipv4/conf/%[1]s/rp_filter to 2", n.Device))
		}
	}
	return out
}

// StrictFilters returns those of the interfaces on which rp_filter drops IPv4 packets unless the route to their source
// uses the same interface. It fails as Settings does.
func (h *Host) StrictFilters(links []string) ([]string, error) {
	var networks []RoutedDevice
	for _, l := range links {
		networks = append(networks, RoutedDevice{Device: l})
	}
	v, err := h.Settings(networks)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(links), func(l string) bool { return !v.strict(l) }), nil
}
