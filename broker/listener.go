package broker

import (
	"net"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// maxConnections of a listener at a time, those included that have not proven who they are: far more than there are
// exporters, operators or agents, and few enough that callers who never finish their handshake leave file
// descriptors for everything else. Each of those is gone after handshakeTimeout.
const maxConnections = 16_384

// bounded closes connections beyond a number of them at once, so that the caller sees it and tries again, where
// waiting would look like a network that loses packets.
type bounded struct {
	net.Listener
	max     int64
	open    atomic.Int64
	refused prometheus.Counter
}

// Accept implements net.Listener.
func (l *bounded) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= l.max {
			return &boundedConn{Conn: conn, closed: sync.OnceFunc(func() { l.open.Add(-1) })}, nil
		}
		l.open.Add(-1)
		l.refused.Inc()
		conn.Close()
	}
}

type boundedConn struct {
	net.Conn
	closed func()
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	defer c.closed()
	return c.Conn.Close()
}
