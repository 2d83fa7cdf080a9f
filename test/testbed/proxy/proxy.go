// Package proxy is a TCP proxy that simulates bad networks: limited rate, silence, half-open connections, resets and
// refused connections. It acts on the bytes of connections, where no root is available to act on packets.
//
// The package owns only the connections through the proxy. The caller decides where the proxy listens and how it dials,
// and in which network namespace.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Conditions apply to all current and future connections. The zero value is a good network.
type Conditions struct {
	// Rate limits each connection from client to server, in bytes per second; 0 means no limit. The other direction has no
	// limit.
	Rate int
	// Stall delays all bytes and ends: both sides of a connection see an open, silent connection. New connections are
	// accepted and silent too. After the stall, the waiting bytes pass.
	Stall bool
	// Refuse resets new connections.
	Refuse bool
}

// Proxy forwards connections. Create it with New. Its methods are safe for concurrent use.
type Proxy struct {
	listener net.Listener
	dial     func(context.Context) (net.Conn, error)

	up atomic.Int64 // bytes from client to server

	mu         sync.Mutex // guards the following
	conditions Conditions
	changed    chan struct{} // closed when the conditions change
	pairs      map[*pair]bool
}

// pair is a connection with its two sides.
type pair struct {
	client, server net.Conn
	// orphaned means that the server's side is reset and the client's stays open.
	orphaned atomic.Bool
}

// New creates a proxy for a listener, which it owns from now on. dial connects to the server. It accepts nothing before
// Run.
func New(listener net.Listener, dial func(context.Context) (net.Conn, error)) *Proxy {
	return &Proxy{listener: listener, dial: dial, changed: make(chan struct{}), pairs: map[*pair]bool{}}
}

// Address returns the listener's address.
func (p *Proxy) Address() net.Addr { return p.listener.Addr() }

// Set applies conditions, also to existing connections.
func (p *Proxy) Set(c Conditions) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conditions = c
	close(p.changed)
	p.changed = make(chan struct{})
}

// Reset resets both sides of all connections with a RST. New connections are still accepted.
func (p *Proxy) Reset() {
	for _, c := range p.all() {
		abort(c.client)
		abort(c.server)
	}
}

// Orphan makes all connections half-open: it resets the server's side and leaves the client with an open connection on
// which nobody answers.
func (p *Proxy) Orphan() {
	for _, c := range p.all() {
		c.orphaned.Store(true)
		abort(c.server)
	}
}

// Passed returns the number of bytes that have passed from client to server.
func (p *Proxy) Passed() int64 { return p.up.Load() }

func (p *Proxy) all() []*pair {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]*pair, 0, len(p.pairs))
	for c := range p.pairs {
		out = append(out, c)
	}
	return out
}

func (p *Proxy) now() (Conditions, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conditions, p.changed
}

// Run forwards connections until ctx ends. It then resets all connections, closes the listener and returns when no
// connection is left.
func (p *Proxy) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { p.listener.Close() })
	defer stop()
	var running sync.WaitGroup
	defer running.Wait()
	defer p.Reset()
	defer cancel()
	for {
		client, err := p.listener.Accept()
		if ctx.Err() != nil {
			if err == nil {
				client.Close()
			}
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("proxy %s: somebody closed its listener", p.Address())
		}
		if err != nil {
			return fmt.Errorf("proxy %s: %w", p.Address(), err)
		}
		if now, _ := p.now(); now.Refuse {
			abort(client)
			continue
		}
		running.Go(func() { p.carry(ctx, client) })
	}
}

// carry forwards one connection until it ends.
func (p *Proxy) carry(ctx context.Context, client net.Conn) {
	if p.open(ctx) != nil {
		abort(client)
		return
	}
	server, err := p.dial(ctx)
	if err != nil {
		abort(client) // as the server would have done
		return
	}
	c := &pair{client: client, server: server}
	p.mu.Lock()
	p.pairs[c] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.pairs, c)
		p.mu.Unlock()
		client.Close()
		server.Close()
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A connection that Reset missed, because it was just being made, ends with ctx.
	stop := context.AfterFunc(ctx, func() { abort(client); abort(server) })
	defer stop()
	var both sync.WaitGroup
	both.Go(func() { p.pump(ctx, c, client, server, true) })
	both.Go(func() { p.pump(ctx, c, server, client, false) })
	both.Wait()
}

// open waits until connections are not stalled.
func (p *Proxy) open(ctx context.Context) error {
	for {
		now, changed := p.now()
		if !now.Stall {
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// inFlight bounds the pieces of a connection that wait. Beyond it, the sender blocks.
const inFlight = 256

// pump forwards the bytes of one direction, and then the end of the stream.
func (p *Proxy) pump(ctx context.Context, c *pair, from, to net.Conn, up bool) {
	pieces := make(chan []byte, inFlight)
	var writing sync.WaitGroup
	writing.Go(func() {
		for next := range pieces {
			if p.pass(ctx, to, next, up) != nil && !c.orphaned.Load() {
				abort(from)
			}
		}
		if p.open(ctx) == nil && !c.orphaned.Load() {
			finish(to)
		}
	})
	buffer := make([]byte, 16<<10)
	for p.open(ctx) == nil {
		n, err := from.Read(buffer)
		if n > 0 {
			pieces <- append([]byte(nil), buffer[:n]...)
		}
		if err != nil {
			break
		}
	}
	close(pieces)
	writing.Wait()
}

// pass writes a piece, at most at the configured rate.
func (p *Proxy) pass(ctx context.Context, to net.Conn, next []byte, up bool) error {
	const perSecond = 20
	for len(next) > 0 {
		if err := p.open(ctx); err != nil {
			return err
		}
		now, _ := p.now()
		size := len(next)
		if up && now.Rate > 0 {
			size = min(size, max(1, now.Rate/perSecond))
		}
		n, err := to.Write(next[:size])
		if up {
			p.up.Add(int64(n))
		}
		if err != nil {
			return err
		}
		next = next[size:]
		if up && now.Rate > 0 {
			select {
			case <-time.After(time.Second / perSecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// finish closes the write side of a connection.
func finish(to net.Conn) {
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // it may be closed already
		return
	}
	to.Close()
}

// abort closes a connection with a RST: SO_LINGER with a timeout of 0, see socket(7).
func abort(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // it may be closed already
	}
	c.Close()
}
