package fleet

import (
	"context"
	"fmt"
	"github.com/kube-semaphore/semaphore/internal/conns"
	"io"
	"net"
	"slices"
)

// stdioName is the verb by which semaphorectl in a part's container copies bytes between its standard streams and the
// part's socket.
const stdioName = "stdio"

// stdioCommand is the command to run in the container for orders, and readCommand that for everything else, which the
// admission policy semaphore-viewers lets a viewer run. They have no path, because PATH of the image finds it.
var (
	stdioCommand = []string{"semaphorectl", stdioName}
	readCommand  = []string{"semaphorectl", stdioName, "--" + ReadOnlyFlag}
)

// ReadOnlyFlag is the flag of stdio for the socket that takes no orders.
const ReadOnlyFlag = "read-only"

// greeting is the command's message that it has reached the socket. Other bytes before it, or in its place, do not come
// from a part.
const greeting = "semaphore-stdio 1\n"

// Stdio connects to the socket of the part in this container, or to the leader's if the part is a standby, and copies
// bytes between it and in and out until one of them ends. It fails if there are several sockets, or none answers.
func (t *Target) Stdio(ctx context.Context, in io.Reader, out io.Writer) error {
	sockets, err := t.findSockets()
	if err != nil {
		return err
	}
	if len(sockets) > 1 {
		return fmt.Errorf("%d sockets in %s: name one by --socket", len(sockets), socketDir)
	}
	socket := sockets[0]
	switch {
	case t.ReadOnly: // the caller finds the leader itself
		socket = conns.ToRead(socket)
	case len(t.Sockets) == 0:
		socket, _ = leading(ctx, socket) // the caller sees that it is a standby
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if _, err := io.WriteString(out, greeting); err != nil {
		return err
	}
	// The end of either ends both: gRPC does not close one half. The reader of in ends with the process at the latest.
	ended := make(chan error, 2)
	go func() { _, err := io.Copy(conn, in); ended <- err }()
	go func() { _, err := io.Copy(out, conn); ended <- err }()
	return <-ended
}

// readGreeting reads no byte beyond the greeting: the next ones are the part's.
func readGreeting(r io.Reader) error {
	got := make([]byte, 0, len(greeting))
	for len(got) < len(greeting) {
		one := make([]byte, 1)
		if _, err := io.ReadFull(r, one); err != nil {
			return fmt.Errorf("the pod's semaphorectl ended after %q: %w", got, err)
		}
		if got = append(got, one[0]); !slices.Equal(got, []byte(greeting)[:len(got)]) {
			return fmt.Errorf("the pod answers %q: it is no semaphorectl that knows the verb %s", got, stdioName)
		}
	}
	return nil
}
