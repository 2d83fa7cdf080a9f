package paths

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// discard is the port of the discard protocol (RFC 863).
const discard = 9

// ask sends an empty datagram to each of some addresses of remote pods through a device, so that WireGuard at its other
// end has something to answer. The peer's node receives it with no hop left: it answers, and no pod gets it. An address
// to which nothing can be sent, as of IPv6 on a node without it, keeps no other from being asked.
func (m *Monitor) ask(ctx context.Context, device string, all []netip.Addr) error {
	var sockets [2]net.PacketConn // of IPv4 and of IPv6
	for _, to := range all {
		i := 0
		if to.Is6() {
			i = 1
		}
		var err error
		if sockets[i] == nil {
			if sockets[i], err = lastHop(ctx, device, i == 1); err == nil {
				defer sockets[i].Close()
			}
		}
		if err == nil {
			_, err = sockets[i].WriteTo(nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, discard)))
		}
		if err != nil {
			slog.Debug("cannot ask a peer whether its session works; the agent tries again", "device", device, "to", to,
				"error", err)
		}
	}
	return ctx.Err()
}

// lastHop returns a socket that sends through a device only, without CAP_NET_RAW, and as if from the last router.
func lastHop(ctx context.Context, device string, v6 bool) (net.PacketConn, error) {
	link, err := net.InterfaceByName(device)
	if err != nil {
		return nil, err
	}
	index := int(binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, uint32(link.Index)))) // ip(7): htonl
	network, level, through, hops := "udp4", unix.IPPROTO_IP, unix.IP_UNICAST_IF, unix.IP_TTL
	if v6 {
		network, level, through, hops = "udp6", unix.IPPROTO_IPV6, unix.IPV6_UNICAST_IF, unix.IPV6_UNICAST_HOPS
	}
	config := net.ListenConfig{Control: onSocket(func(fd int) error {
		return errors.Join(unix.SetsockoptInt(fd, level, through, index), unix.SetsockoptInt(fd, level, hops, 1))
	})}
	return config.ListenPacket(ctx, network, "")
}
