package wireguard

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink"
)

// Watch calls changed with the name of an interface whenever the kernel tells that it, or a route of
// ours, was changed or deleted, until ctx ends. Changes of our own are told, too. changed must not wait.
func Watch(ctx context.Context, changed func(name string)) error {
	links := make(chan netlink.LinkUpdate, 64)
	routes := make(chan netlink.RouteUpdate, 64)
	failed := make(chan error, 2)
	done := make(chan struct{})
	defer close(done)
	onError := func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	if err := netlink.LinkSubscribeWithOptions(links, done, netlink.LinkSubscribeOptions{ErrorCallback: onError}); err != nil {
		return fmt.Errorf("watching interfaces: %w", err)
	}
	if err := netlink.RouteSubscribeWithOptions(routes, done, netlink.RouteSubscribeOptions{ErrorCallback: onError}); err != nil {
		return fmt.Errorf("watching routes: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			return fmt.Errorf("watching interfaces and routes: %w", err)
		case u, ok := <-links:
			if !ok {
				return fmt.Errorf("watching interfaces: the kernel ended it")
			}
			changed(u.Attrs().Name)
		case u, ok := <-routes:
			if !ok {
				return fmt.Errorf("watching routes: the kernel ended it")
			}
			if u.Protocol != RouteProtocol {
				continue
			}
			if link, err := netlink.LinkByIndex(u.LinkIndex); err == nil {
				changed(link.Attrs().Name)
			}
		}
	}
}
