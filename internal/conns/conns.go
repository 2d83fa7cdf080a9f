// Package conns bounds the connections of a listener, so that no caller can use them up for others.
//
// A connection is unproven until its owner has shown who it is. A new one always finds room: where there is none, the oldest unproven
// connection of the address that has most of them is closed. One who has shown who it is has a share of its own, and its
// newest connections stay. The package knows net and TLS, and nothing of what is said on a connection.
//
// It imports nothing of ours.
package conns

import (
	"container/list"
	"context"
	"net"
	"net/netip"
	"sync"

	"google.golang.org/grpc/credentials"
)

// Limits are numbers of connections at a time.
type Limits struct {
	// All is how many there may be, Unproven how many of them that have not shown who they are.
	All, Unproven int
	// Each is how many one identity may have.
	Each int
}

// Table is the connections of one listener.
type Table struct {
	limits Limits
	// closed is told why a connection was closed: "full", "unproven" or "share".
	closed func(why string)

	mu      sync.Mutex
	all     int
	byAddr  map[string]*conn // by remote address
	sources map[string]*list.List
	// crowds are the sources by how many unproven connections they have.
	crowds   map[int]map[string]bool
	largest  int
	unproven int
	owners   map[string]*list.List
}

// New makes an empty table.
func New(limits Limits, closed func(why string)) *Table {
	return &Table{
		limits: limits, closed: closed, byAddr: map[string]*conn{},
		sources: map[string]*list.List{}, crowds: map[int]map[string]bool{}, owners: map[string]*list.List{},
	}
}

// Listener is l with its connections in the table.
func (t *Table) Listener(l net.Listener) net.Listener { return &listener{l, t} }

type listener struct {
	net.Listener
	table *Table
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if tracked := l.table.add(c); tracked != nil {
			return tracked, nil
		}
		// The caller sees it and tries again, where waiting would look like a network that loses packets.
		c.Close()
	}
}

type conn struct {
	net.Conn
	table        *Table
	address, key string
	// element is the connection in the list of its source, or of its owner when it has one.
	element *list.Element
	owner   string
	once    sync.Once
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.once.Do(func() { c.table.remove(c) })
	return c.Conn.Close()
}

func (t *Table) add(inner net.Conn) net.Conn {
	c := &conn{Conn: inner, table: t, address: inner.RemoteAddr().String(), key: Source(inner.RemoteAddr())}
	t.mu.Lock()
	var victim *conn
	why := "unproven"
	if t.all >= t.limits.All || t.unproven >= t.limits.Unproven {
		if victim = t.oldestOfTheLargest(); victim == nil {
			t.mu.Unlock()
			t.closed("full")
			return nil
		}
		t.drop(victim)
	}
	t.all++
	t.byAddr[c.address] = c
	t.join(c)
	t.mu.Unlock()
	if victim != nil {
		t.closed(why)
		victim.Close()
	}
	return c
}

// oldestOfTheLargest is the connection that makes room.
func (t *Table) oldestOfTheLargest() *conn {
	for t.largest > 0 && len(t.crowds[t.largest]) == 0 {
		t.largest--
	}
	for key := range t.crowds[t.largest] {
		return t.sources[key].Front().Value.(*conn)
	}
	return nil
}

func (t *Table) join(c *conn) {
	of := t.sources[c.key]
	if of == nil {
		of = list.New()
		t.sources[c.key] = of
	}
	t.count(c.key, of.Len(), of.Len()+1)
	c.element = of.PushBack(c)
	t.unproven++
}

func (t *Table) leave(c *conn) {
	of := t.sources[c.key]
	t.count(c.key, of.Len(), of.Len()-1)
	of.Remove(c.element)
	c.element = nil
	if of.Len() == 0 {
		delete(t.sources, c.key)
	}
	t.unproven--
}

// count notes that a source has another number of unproven connections.
func (t *Table) count(key string, was, is int) {
	if was > 0 {
		if delete(t.crowds[was], key); len(t.crowds[was]) == 0 {
			delete(t.crowds, was)
		}
	}
	if is > 0 {
		if t.crowds[is] == nil {
			t.crowds[is] = map[string]bool{}
		}
		t.crowds[is][key] = true
		t.largest = max(t.largest, is)
	}
}

// drop takes a connection out of the table; once more does nothing.
func (t *Table) drop(c *conn) {
	if c.element == nil {
		return
	}
	if c.owner == "" {
		t.leave(c)
	} else {
		of := t.owners[c.owner]
		of.Remove(c.element)
		c.element = nil
		if of.Len() == 0 {
			delete(t.owners, c.owner)
		}
	}
	t.all--
	if t.byAddr[c.address] == c {
		delete(t.byAddr, c.address)
	}
}

func (t *Table) remove(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(c)
}

// Prove notes that the connection from an address is owner's. Where owner has as many as it may, its oldest is closed.
func (t *Table) Prove(from net.Addr, owner string) {
	t.mu.Lock()
	c := t.byAddr[from.String()]
	if c == nil || c.owner != "" {
		t.mu.Unlock()
		return
	}
	t.leave(c)
	c.owner = owner
	of := t.owners[owner]
	if of == nil {
		of = list.New()
		t.owners[owner] = of
	}
	var victim *conn
	if of.Len() >= t.limits.Each {
		victim = of.Front().Value.(*conn)
	}
	c.element = of.PushBack(c)
	if victim != nil {
		t.drop(victim)
	}
	t.mu.Unlock()
	if victim != nil {
		t.closed("share")
		victim.Close()
	}
}

// Open is how many connections there are, and how many of them are unproven.
func (t *Table) Open() (all, unproven int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all, t.unproven
}

// Credentials are creds that prove each connection by its handshake; owner says whose it is.
func (t *Table) Credentials(creds credentials.TransportCredentials, owner func(credentials.AuthInfo) string) credentials.TransportCredentials {
	return proving{creds, t, owner}
}

type proving struct {
	credentials.TransportCredentials
	table *Table
	owner func(credentials.AuthInfo) string
}

// ServerHandshake implements credentials.TransportCredentials.
func (p proving) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := p.TransportCredentials.ServerHandshake(raw)
	if err == nil {
		p.table.Prove(raw.RemoteAddr(), p.owner(info))
	}
	return secured, info, err
}

// ClientHandshake implements credentials.TransportCredentials.
func (p proving) ClientHandshake(ctx context.Context, name string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return p.TransportCredentials.ClientHandshake(ctx, name, raw)
}

// Clone implements credentials.TransportCredentials.
func (p proving) Clone() credentials.TransportCredentials {
	return proving{p.TransportCredentials.Clone(), p.table, p.owner}
}

// Source is what callers are told apart by before they show who they are: an IPv4 address, or the /64 that a single host may have
// of IPv6.
func Source(addr net.Addr) string {
	at, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return addr.String()
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is4() {
		return ip.String()
	}
	prefix, err := ip.Prefix(64)
	if err != nil {
		return ip.String()
	}
	return prefix.String()
}
