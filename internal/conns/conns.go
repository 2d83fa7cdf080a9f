// Package conns bounds the connections of a listener, and the failed attempts to be admitted, so that no client can use
// them up for others, and listens on unix sockets.
//
// A connection is unproven until the client is authenticated. A new one always gets room: if there is none, the oldest
// unproven connection of the address with the most of them is closed. An authenticated client has a share of its own,
// and its newest connections stay. The package knows net and TLS, and nothing of the protocols.
package conns

import (
	"container/list"
	"net"
	"net/netip"
	"sync"

	"google.golang.org/grpc/credentials"
)

type Limits struct {
	// All bounds all connections, Unproven those that are not authenticated.
	All, Unproven int
	// Each bounds the connections of one identity.
	Each int
}

type Table struct {
	limits Limits
	// closed is called with the reason why a connection was closed: "full", "unproven" or "share".
	closed func(why string)

	mu      sync.Mutex
	all     int
	byAddr  map[string]*conn // by remote address
	sources map[string]*list.List
	// crowds are the sources by their number of unproven connections.
	crowds   map[int]map[string]bool
	largest  int
	unproven int
	owners   map[string]*list.List
}

func New(limits Limits, closed func(why string)) *Table {
	return &Table{
		limits: limits, closed: closed, byAddr: map[string]*conn{},
		sources: map[string]*list.List{}, crowds: map[int]map[string]bool{}, owners: map[string]*list.List{},
	}
}

// Listener wraps l and keeps its connections in the table.
func (t *Table) Listener(l net.Listener) net.Listener { return &listener{l, t} }

type listener struct {
	net.Listener
	table *Table
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if tracked := l.table.add(c); tracked != nil {
			return tracked, nil
		}
		// The client sees it and tries again, whereas waiting would look like packet loss.
		c.Close()
	}
}

type conn struct {
	net.Conn
	table        *Table
	address, key string
	// element is the connection in the list of its source, or of its owner once it has one.
	element *list.Element
	owner   string
	once    sync.Once
}

func (c *conn) Close() error {
	c.once.Do(func() {
		c.table.mu.Lock()
		defer c.table.mu.Unlock()
		c.table.drop(c)
	})
	return c.Conn.Close()
}

func (t *Table) add(inner net.Conn) net.Conn {
	c := &conn{Conn: inner, table: t, address: inner.RemoteAddr().String(), key: Source(inner.RemoteAddr())}
	t.mu.Lock()
	var victim *conn
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
		t.closed("unproven")
		victim.Close()
	}
	return c
}

// oldestOfTheLargest returns the connection to close for a new one.
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
	n := push(t.sources, c.key, c)
	t.count(c.key, n-1, n)
	t.unproven++
}

func (t *Table) leave(c *conn) {
	n := remove(t.sources, c.key, c)
	t.count(c.key, n+1, n)
	t.unproven--
}

// push adds a connection to one of several lists, and returns the length of that.
func push(lists map[string]*list.List, of string, c *conn) (n int) {
	if lists[of] == nil {
		lists[of] = list.New()
	}
	c.element = lists[of].PushBack(c)
	return lists[of].Len()
}

// remove undoes push.
func remove(lists map[string]*list.List, of string, c *conn) (n int) {
	lists[of].Remove(c.element)
	c.element = nil
	if n = lists[of].Len(); n == 0 {
		delete(lists, of)
	}
	return n
}

// count records a source's new number of unproven connections.
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

// drop removes a connection from the table. It is idempotent.
func (t *Table) drop(c *conn) {
	if c.element == nil {
		return
	}
	if c.owner == "" {
		t.leave(c)
	} else {
		remove(t.owners, c.owner, c)
	}
	t.all--
	if t.byAddr[c.address] == c {
		delete(t.byAddr, c.address)
	}
}

// Prove records the owner of the connection from an address. If the owner has as many as it may, its oldest is closed.
func (t *Table) Prove(from net.Addr, owner string) {
	t.mu.Lock()
	c := t.byAddr[from.String()]
	if c == nil || c.owner != "" {
		t.mu.Unlock()
		return
	}
	t.leave(c)
	c.owner = owner
	var victim *conn
	if push(t.owners, owner, c) > t.limits.Each {
		victim = t.owners[owner].Front().Value.(*conn)
		t.drop(victim)
	}
	t.mu.Unlock()
	if victim != nil {
		t.closed("share")
		victim.Close()
	}
}

// Open returns the number of connections, and that of the unproven ones.
func (t *Table) Open() (all, unproven int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all, t.unproven
}

// Credentials wraps creds to prove each connection by its handshake; owner returns its identity.
func (t *Table) Credentials(creds credentials.TransportCredentials,
	owner func(credentials.AuthInfo) string) credentials.TransportCredentials {
	return proving{creds, t, owner}
}

type proving struct {
	credentials.TransportCredentials
	table *Table
	owner func(credentials.AuthInfo) string
}

func (p proving) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := p.TransportCredentials.ServerHandshake(raw)
	if err == nil {
		p.table.Prove(raw.RemoteAddr(), p.owner(info))
	}
	return secured, info, err
}

func (p proving) Clone() credentials.TransportCredentials {
	return proving{p.TransportCredentials.Clone(), p.table, p.owner}
}

// Source returns the identity of a client before authentication: its IPv4 address, or the /64 of its IPv6 address,
// which a single host may have.
func Source(addr net.Addr) string {
	at, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return addr.String()
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is4() {
		return ip.String()
	}
	prefix, _ := ip.Prefix(64) // each IPv6 address has one
	return prefix.String()
}
