// Package proxy is a TCP proxy that does to connections what bad networks do: it is slow, it goes
// silent, it forgets one end, it resets, it lets nobody through. Where the kernel cannot do so to packets,
// a proxy between two programs can do it to bytes.
//
// It owns the connections that go through it and nothing else, and imports nothing of this module: where it
// listens and how it dials, in which network namespace, is the caller's.
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

// Conditions are what happens to all connections from now on. The zero value is a good network.
type Conditions struct {
	// Latency is added to each byte, in each direction.
	Latency time.Duration
	// Rate is the most bytes a second that pass from those who dial to the one behind, for each connection;
	// 0 for no limit. Nothing limits the other direction.
	Rate int
	// Stall lets no byte pass and no end: both sides of a connection see an open connection on which nothing comes.
	// Newcomers are connected, and hear nothing. After the stall, the waiting bytes pass.
	Stall bool
	// Refuse resets newcomers.
	Refuse bool
}

// Proxy passes connections on. Make it with New; its methods may be called at any time, from any goroutine.
type Proxy struct {
	listener net.Listener
	dial     func(context.Context) (net.Conn, error)

	accepted atomic.Int64 // connections, those that were refused too
	up       atomic.Int64 // bytes from those who dial

	mu         sync.Mutex // guards the following
	conditions Conditions
	changed    chan struct{} // closed when the conditions change
	pairs      map[*pair]bool
}

// pair is one connection with its two sides.
type pair struct {
	client, server net.Conn
	// orphaned: the server's side is gone, the client is not to learn of it.
	orphaned atomic.Bool
}

// New makes a proxy from a listener, which it takes over, to whatever dial connects to. Nothing is accepted before Run.
func New(listener net.Listener, dial func(context.Context) (net.Conn, error)) *Proxy {
	return &Proxy{listener: listener, dial: dial, changed: make(chan struct{}), pairs: map[*pair]bool{}}
}

// Address is where the proxy listens.
func (p *Proxy) Address() net.Addr { return p.listener.Addr() }

// Set puts conditions into force, for the connections that stand too.
func (p *Proxy) Set(c Conditions) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conditions = c
	close(p.changed)
	p.changed = make(chan struct{})
}

// Reset resets all connections: both sides get a RST. Newcomers are as welcome as before.
func (p *Proxy) Reset() {
	for _, c := range p.all() {
		abort(c.client)
		abort(c.server)
	}
}

// Orphan makes all connections half-open: the side of the one behind is reset, and the one that dialled is left
// with a connection that nobody answers on.
func (p *Proxy) Orphan() {
	for _, c := range p.all() {
		c.orphaned.Store(true)
		abort(c.server)
	}
}

// Connections is how many connections stand now.
func (p *Proxy) Connections() int { return len(p.all()) }

// Accepted is how many connections there have been, those that were refused too.
func (p *Proxy) Accepted() int { return int(p.accepted.Load()) }

// Passed is how many bytes have passed from those who dial to the one behind.
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

// Run passes connections on until ctx ends, and then resets all and closes the listener. It returns when none is left.
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
		p.accepted.Add(1)
		if now, _ := p.now(); now.Refuse {
			abort(client)
			continue
		}
		running.Go(func() { p.carry(ctx, client) })
	}
}

// carry is one connection, from its first byte to its end.
func (p *Proxy) carry(ctx context.Context, client net.Conn) {
	if p.open(ctx) != nil {
		abort(client)
		return
	}
	server, err := p.dial(ctx)
	if err != nil {
		abort(client) // as the one behind would have done
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
	// What Reset missed, as the connection came just then, ends with ctx.
	stop := context.AfterFunc(ctx, func() { abort(client); abort(server) })
	defer stop()
	var both sync.WaitGroup
	both.Go(func() { p.pump(ctx, c, client, server, true) })
	both.Go(func() { p.pump(ctx, c, server, client, false) })
	both.Wait()
}

// open waits while connections are stalled.
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

// piece is bytes on their way.
type piece struct {
	data []byte
	read time.Time
}

// inFlight bounds the pieces of a connection that latency holds; then its sender waits.
const inFlight = 256

// pump brings the bytes of one direction across, and then the end of the stream.
func (p *Proxy) pump(ctx context.Context, c *pair, from, to net.Conn, up bool) {
	pieces := make(chan piece, inFlight)
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
			pieces <- piece{append([]byte(nil), buffer[:n]...), time.Now()}
		}
		if err != nil {
			break
		}
	}
	close(pieces)
	writing.Wait()
}

// pass writes a piece when it is due, no faster than the rate.
func (p *Proxy) pass(ctx context.Context, to net.Conn, next piece, up bool) error {
	const perSecond = 20
	for len(next.data) > 0 {
		if err := p.open(ctx); err != nil {
			return err
		}
		now, changed := p.now()
		if due := time.Until(next.read.Add(now.Latency)); due > 0 {
			select {
			case <-time.After(due):
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		}
		size := len(next.data)
		if up && now.Rate > 0 {
			size = min(size, max(1, now.Rate/perSecond))
		}
		n, err := to.Write(next.data[:size])
		if up {
			p.up.Add(int64(n))
		}
		if err != nil {
			return err
		}
		next.data = next.data[size:]
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

// finish tells the other side that no more bytes come.
func finish(to net.Conn) {
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // it may be closed already
		return
	}
	to.Close()
}

// abort closes a connection with a RST: SO_LINGER of socket(7), with no time.
func abort(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // it may be closed already
	}
	c.Close()
}
