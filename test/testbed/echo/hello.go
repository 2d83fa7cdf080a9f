package echo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// helloTime bounds one connection of Hello.
const helloTime = 5 * time.Second

// Hello answers every TCP connection and every UDP packet on address (":42") with a text and a line feed until ctx
// ends, like the server of the conformance suite of the Multi-Cluster Services API.
func Hello(ctx context.Context, address, text string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	defer listener.Close()
	packets, err := net.ListenPacket("udp", address)
	if err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	defer packets.Close()
	return hello(ctx, listener, packets, text)
}

func hello(ctx context.Context, listener net.Listener, packets net.PacketConn, text string) error {
	answer := []byte(text + "\n")
	ended := make(chan error, 2)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				ended <- err
				return
			}
			go func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(helloTime)) // the deadline applies to the connection only
				if _, err := conn.Write(answer); err != nil {
					return
				}
				_ = conn.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, conn) // closing with unread data would reset the connection
			}()
		}
	}()
	go func() {
		buffer := make([]byte, 1500)
		for {
			_, from, err := packets.ReadFrom(buffer)
			if err == nil {
				_, err = packets.WriteTo(answer, from)
			}
			if errors.Is(err, net.ErrClosed) {
				ended <- err
				return
			}
		}
	}()
	var err error
	running := 2
	select {
	case err = <-ended:
		running--
	case <-ctx.Done():
	}
	listener.Close()
	packets.Close()
	for range running {
		<-ended
	}
	return err
}
