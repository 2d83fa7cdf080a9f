package verify

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// The first byte of a connection asks the server to count the bytes that follow and to answer with the number, or to
// return each message.
const count, echo = 'c', 'e'

const (
	// message is the size of a request, of its answer, and of one that measures latency, in bytes.
	message = 64
	chunk   = 256 << 10 // bytes of one write
)

// Grace is how long a measurement may take above its time.
const Grace = 10 * time.Second

// ServeLoad serves connections of a listener until ctx ends: it counts or returns the bytes that it receives, as the
// first byte of a connection says. Its clients send as much TCP traffic as a path carries, and measure it. It returns
// nil then, and fails if the listener does before.
func ServeLoad(ctx context.Context, listener net.Listener) error {
	var open sync.WaitGroup
	defer open.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { listener.Close() })
	for {
		c, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		open.Go(func() {
			defer context.AfterFunc(ctx, func() { c.Close() })()
			defer c.Close()
			_ = serve(c) // who has left needs no answer
		})
	}
}

func serve(c net.Conn) error {
	var kind [1]byte
	if _, err := io.ReadFull(c, kind[:]); err != nil {
		return err
	}
	if kind[0] == echo {
		buffer := make([]byte, message)
		for {
			if _, err := io.ReadFull(c, buffer); err != nil {
				return err
			}
			if _, err := c.Write(buffer); err != nil {
				return err
			}
		}
	}
	buffer, n := make([]byte, chunk), uint64(0)
	for {
		more, err := c.Read(buffer)
		n += uint64(more)
		if errors.Is(err, io.EOF) {
			_, err = c.Write(binary.BigEndian.AppendUint64(nil, n))
			return err
		}
		if err != nil {
			return err
		}
	}
}

// Path is the way to a server at an address with a port.
type Path string

// open connects for a measurement. The connection ends with ctx, and some time after the measurement at the latest.
func (p Path) open(ctx context.Context, while time.Duration) (c *net.TCPConn, end func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, while+Grace)
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", string(p))
	if err != nil {
		cancel()
		return nil, nil, err
	}
	c, ok := conn.(*net.TCPConn)
	if !ok {
		cancel()
		return nil, nil, errors.Join(fmt.Errorf("%T is no connection of TCP", conn), conn.Close())
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	return c, func() { stop(); cancel(); c.Close() }, nil
}

// Bandwidth sends through a number of streams for a while, and returns the bytes per second that arrived. rate limits
// each stream in bytes per second; 0 is no limit. It fails if a stream cannot be opened or ends early.
func (p Path) Bandwidth(ctx context.Context, streams int, while time.Duration, rate float64) (float64, error) {
	return perSecond(ctx, streams, func(ctx context.Context, began time.Time) (uint64, error) {
		return p.stream(ctx, began, while, rate)
	})
}

// perSecond does something several times at once, and returns what all of it counted per second. It fails with the
// first, and ends the others.
func perSecond(ctx context.Context, times int, do func(ctx context.Context, began time.Time) (uint64, error)) (float64,
	error) {
	began := time.Now()
	all := make([]uint64, times)
	g, ctx := errgroup.WithContext(ctx)
	for i := range all {
		g.Go(func() (err error) {
			all[i], err = do(ctx, began)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	sum := 0.0
	for _, n := range all {
		sum += float64(n)
	}
	return sum / time.Since(began).Seconds(), nil
}

func (p Path) stream(ctx context.Context, began time.Time, while time.Duration, rate float64) (uint64, error) {
	c, end, err := p.open(ctx, while)
	if err != nil {
		return 0, err
	}
	defer end()
	if _, err := c.Write([]byte{count}); err != nil {
		return 0, err
	}
	buffer := make([]byte, chunk)
	for sent := 0.0; sent == 0 || time.Since(began) < while; { // the connection may have taken longer
		if ahead := sent - rate*time.Since(began).Seconds(); rate > 0 && ahead > 0 {
			time.Sleep(time.Duration(ahead / rate * float64(time.Second)))
		}
		n, err := c.Write(buffer)
		if err != nil {
			return 0, err
		}
		sent += float64(n)
	}
	if err := c.CloseWrite(); err != nil {
		return 0, err
	}
	var arrived [8]byte
	_, err = io.ReadFull(c, arrived[:])
	return binary.BigEndian.Uint64(arrived[:]), err
}

// Latency sends one small message after the other on a connection for a while, and returns how long each took there and
// back. It fails if the connection does.
func (p Path) Latency(ctx context.Context, while time.Duration) (all []time.Duration, err error) {
	c, end, err := p.open(ctx, while)
	if err != nil {
		return nil, err
	}
	defer end()
	if _, err := c.Write([]byte{echo}); err != nil {
		return nil, err
	}
	buffer := make([]byte, message)
	for began := time.Now(); len(all) == 0 || time.Since(began) < while; {
		sent := time.Now()
		if err := exchange(c, buffer); err != nil {
			return nil, err
		}
		all = append(all, time.Since(sent))
	}
	return all, nil
}

// exchange writes, and reads as many bytes as a message has.
func exchange(c net.Conn, out []byte) error {
	if _, err := c.Write(out); err != nil {
		return err
	}
	var in [message]byte
	_, err := io.ReadFull(c, in[:])
	return err
}

// Requests has a number of clients send requests for a while, each on a new connection, and returns those per second
// that were answered. It fails at the first without an answer.
func (p Path) Requests(ctx context.Context, clients int, while time.Duration) (float64, error) {
	return perSecond(ctx, clients, func(ctx context.Context, began time.Time) (answered uint64, err error) {
		for answered == 0 || time.Since(began) < while {
			if err := p.request(ctx, while); err != nil {
				return answered, err
			}
			answered++
		}
		return answered, nil
	})
}

func (p Path) request(ctx context.Context, while time.Duration) error {
	c, end, err := p.open(ctx, while)
	if err != nil {
		return err
	}
	defer end()
	// Without a reset, each connection would occupy its port for a minute after its end.
	if err := c.SetLinger(0); err != nil {
		return err
	}
	return exchange(c, append([]byte{echo}, make([]byte, message)...))
}
