// Package sysctl reads the kernel settings that decide whether a node forwards packets of remote pods, and reports
// which of them prevent it. It never writes one: they belong to the operator, and to kubelet. The kernel's
// Documentation/networking/ip-sysctl.rst explains them.
//
// It may import no other package of the agent.
package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// root is the directory of the network namespace's settings.
const root = "/proc/sys/net"

// Values are settings by name as in sysctl(8), with slashes, without "net/": a device's name may contain dots. A
// setting that the kernel does not have is missing.
type Values map[string]int

// Network is what is routed into one device.
type Network struct {
	Device  string
	Subnets []netip.Prefix
	// Shadowed means that routes lead packets for some of the subnets past the device.
	Shadowed bool
}

func ofDevice(device, setting string) string { return "ipv4/conf/" + device + "/" + setting }

// The settings that do not belong to a device.
const (
	forward4 = "ipv4/ip_forward"
	forward6 = "ipv6/conf/all/forwarding"
	filter   = "ipv4/conf/all/rp_filter"
)

// Read reads the settings that Problems needs.
func Read(networks []Network) (Values, error) {
	names := []string{forward4, forward6, filter}
	for _, n := range networks {
		names = append(names, ofDevice(n.Device, "forwarding"), ofDevice(n.Device, "rp_filter"))
	}
	out := Values{}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(root, name))
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

// strict is the value of rp_filter that drops a packet unless the route to its source uses the interface on which it
// arrived.
const strict = 1

// Problems returns what prevents packets from passing, and what to set; a sentence each. It ignores unknown settings.
func Problems(v Values, networks []Network) []string {
	off := func(name string) bool { value, known := v[name]; return known && value == 0 }
	has := func(wanted func(netip.Addr) bool) bool {
		for _, n := range networks {
			for _, s := range n.Subnets {
				if wanted(s.Addr()) {
					return true
				}
			}
		}
		return false
	}
	var out []string
	v4 := has(netip.Addr.Is4)
	if v4 && off(forward4) {
		out = append(
			out,
			"net.ipv4.ip_forward is 0: the node drops all packets between its pods and remote ones; set it to 1",
		)
	}
	if has(netip.Addr.Is6) && off(forward6) {
		out = append(out, "net.ipv6.conf.all.forwarding is 0: the node drops all IPv6 packets between its pods and remote "+
			"ones; set it to 1")
	}
	for _, n := range networks {
		if v4 && !off(forward4) && off(ofDevice(n.Device, "forwarding")) {
			out = append(out, fmt.Sprintf("net/ipv4/conf/%s/forwarding is 0: the node drops all packets of remote pods to its "+
				"own; set it to 1", n.Device))
		}
		own, known := v[ofDevice(n.Device, "rp_filter")]
		// The greater of the two counts. While no route bypasses the device, a strict filter drops nothing.
		if known && max(v[filter], own) == strict && n.Shadowed {
			out = append(out, fmt.Sprintf("rp_filter is strict on %s, and routes lead past it: the node drops packets of "+
				"those remote pods; "+
				"remove the routes, or set net/ipv4/conf/%s/rp_filter to 2", n.Device, n.Device))
		}
	}
	return out
}

// StrictFilters returns those of the interfaces on which rp_filter drops IPv4 packets unless the route to their source
// uses the same interface.
func StrictFilters(links []string) ([]string, error) {
	var networks []Network
	for _, l := range links {
		networks = append(networks, Network{Device: l})
	}
	v, err := Read(networks)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, l := range links {
		if own, known := v[ofDevice(l, "rp_filter")]; known && max(v[filter], own) == strict {
			out = append(out, l)
		}
	}
	return out, nil
}
