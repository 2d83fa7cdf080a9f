package kernel

import (
	"fmt"
	"os"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// IPv4 settings of an interface have numbers in the kernel's uapi/linux/ip.h (IPV4_DEVCONF_…), by which rtnetlink(7)
// sets them (IFLA_AF_SPEC, AF_INET, IFLA_INET_CONF). /proc/sys is not writable in a container.
const (
	devconfRPFilter = 8
	inetConf        = 1 // IFLA_INET_CONF, linux/if_link.h
	off, loose      = 0, 2
)

// LoosenFilter makes rp_filter of a device accept IPv4 packets whose route back uses another interface, whatever the
// node's default for new interfaces is. It changes no other interface. The greater of the device's value and that of
// all interfaces counts. A loose filter still drops such packets on a device without an address (fib_validate_source in
// the kernel), so it is turned off if possible; WireGuard itself accepts only allowed IPs. It fails if there is no
// device, or the kernel refuses.
func (h *Host) LoosenFilter(name string) error {
	link, err := existingLink(name)
	if err != nil {
		return err
	}
	value := uint32(loose)
	if all, err := os.ReadFile("/proc/sys/net/ipv4/conf/all/rp_filter"); err == nil &&
		strings.TrimSpace(string(all)) == "0" {
		value = off
	}
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = int32(link.Attrs().Index)
	request.AddData(message)
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC|unix.NLA_F_NESTED, nil)
	inet := spec.AddRtAttr(unix.AF_INET|unix.NLA_F_NESTED, nil)
	conf := inet.AddRtAttr(inetConf|unix.NLA_F_NESTED, nil)
	conf.AddRtAttr(devconfRPFilter, nl.Uint32Attr(value))
	request.AddData(spec)
	if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("rp_filter of %s: %w", name, err)
	}
	return nil
}
