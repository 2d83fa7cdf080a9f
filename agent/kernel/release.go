package kernel

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Release adds routes to the main table that lead to the same places as the agent's routes of a device: without a
// source, and with the protocol of routes that ip-route(8) adds, which semaphore-wireguard leaves. It replaces a
// conflicting route, as semaphore-wireguard does. The agent's routes remain for RemoveRouting, so that no packet is
// dropped. It returns the routes. It fails at the first that the kernel refuses, and if the device cannot be read.
func (h *Host) Release(name string) ([]string, error) {
	existing, err := h.Device(name)
	if existing == nil || err != nil {
		return nil, err
	}
	strays, err := h.Strays(name, nil) // of an agent with another table
	if err != nil {
		return nil, err
	}
	routes := existing.Routes
	for _, r := range strays {
		if !slices.Contains(routes, r.Prefix) {
			routes = append(routes, r.Prefix)
		}
	}
	var released []string
	for _, prefix := range routes {
		r := Route{Prefix: prefix, Type: unix.RTN_UNICAST, Protocol: unix.RTPROT_BOOT, Link: existing.Index}
		if err := netlink.RouteReplace(r.message()); err != nil {
			return released, fmt.Errorf("handing over route %s via %s: %w", prefix, name, err)
		}
		released = append(released, prefix.String())
	}
	return released, nil
}

// Unmark removes the agent's marks from a device: its alias, and the addresses that it was given. It fails if the
// device cannot be read or changed; one that does not exist is no error.
func (h *Host) Unmark(name string) error {
	existing, err := h.Device(name)
	if existing == nil || err != nil {
		return err
	}
	for _, addr := range existing.Addresses {
		if err := h.DeleteAddress(name, addr); err != nil {
			return err
		}
	}
	link, err := findLink(name)
	if link == nil || err != nil {
		return err
	}
	if err := netlink.LinkSetAlias(link, ""); err != nil {
		return fmt.Errorf("taking the alias off %s: %w", name, err)
	}
	return nil
}
