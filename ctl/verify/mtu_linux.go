package verify

import (
	"net"

	"golang.org/x/sys/unix"
)

// pathMTU is the kernel's MTU for the path of a TCP connection (tcp(7), TCP_INFO), 0 for unknown.
func pathMTU(conn net.Conn) int {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return 0
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0
	}
	mtu := 0
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			mtu = int(info.Pmtu)
		}
	})
	return mtu
}
