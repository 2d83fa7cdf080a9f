package echo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"time"
)

// Socat implements the part of socat(1) that the pods of the conformance suite of sigs.k8s.io/mcs-api use: a TCP or UDP
// listener that answers each client with the output of a shell command,
//
//	socat -v -v TCP-LISTEN:42,crlf,reuseaddr,fork SYSTEM:'echo "pod ip $first_ip"'
//
// for one family or for both (TCP6-LISTEN with ipv6only=0). It serves until ctx ends.
func Socat(ctx context.Context, args []string) error {
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		args = args[1:]
	}
	if len(args) != 2 {
		return fmt.Errorf("socat: %d addresses, want 2", len(args))
	}
	network, address, err := listenerOf(args[0])
	if err != nil {
		return err
	}
	command, ok := strings.CutPrefix(args[1], "SYSTEM:")
	if !ok {
		return fmt.Errorf("socat: address %q is not SYSTEM:COMMAND", args[1])
	}
	answer := printed(ctx, command)
	if strings.HasPrefix(network, "udp") {
		packets, err := net.ListenPacket(network, address)
		if err != nil {
			return fmt.Errorf("socat: %w", err)
		}
		return answerPackets(ctx, packets, answer)
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		return fmt.Errorf("socat: %w", err)
	}
	return answerConnections(ctx, listener, answer)
}

// printed returns a function that runs a command and returns its output with CRLF line ends, as for the option crlf.
func printed(ctx context.Context, command string) func() []byte {
	return func() []byte {
		out, _ := exec.CommandContext(ctx, "sh", "-c", command).Output() // use the output even if the command fails
		return []byte(strings.ReplaceAll(string(out), "\n", "\r\n"))
	}
}

// listenerOf parses TCP-LISTEN:PORT,OPTION… and the like into a network and an address.
func listenerOf(text string) (network, address string, err error) {
	kind, rest, _ := strings.Cut(text, ":")
	port, options, _ := strings.Cut(rest, ",")
	switch kind {
	case "TCP-LISTEN":
		network = "tcp4"
	case "UDP-LISTEN":
		network = "udp4"
	case "TCP6-LISTEN":
		network = "tcp6"
	case "UDP6-LISTEN":
		network = "udp6"
	default:
		return "", "", fmt.Errorf("socat: address %q is not TCP-LISTEN or UDP-LISTEN", text)
	}
	if strings.Contains(","+options+",", ",ipv6only=0,") {
		network = network[:3] // both families
	}
	return network, ":" + port, nil
}

func answerConnections(ctx context.Context, listener net.Listener, answer func() []byte) error {
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	for {
		conn, err := listener.Accept()
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("socat: %w", err)
		}
		go func() {
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(helloTime)) // the deadline applies to the connection only
			if _, err := conn.Write(answer()); err != nil {
				return
			}
			_ = conn.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, conn) // closing with unread data would reset the connection
		}()
	}
}

func answerPackets(ctx context.Context, packets net.PacketConn, answer func() []byte) error {
	defer packets.Close()
	defer context.AfterFunc(ctx, func() { packets.Close() })()
	buffer := make([]byte, 1500)
	for {
		_, from, err := packets.ReadFrom(buffer)
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err == nil:
			_, _ = packets.WriteTo(answer(), from) // an error concerns this client only
		}
	}
}
