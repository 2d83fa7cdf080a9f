package check

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Dial connects to a listener, shows it a certificate if there is one, and returns the result. It verifies nothing and
// sends only the preface of HTTP/2; judgeDialled judges the answer.
func Dial(ctx context.Context, address, from string, expect spiffeid.ID, show *tls.Certificate,
	timeout time.Duration) Dialled {
	d := Dialled{Address: address, From: from, Expect: expect, Showed: show != nil}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		var dns *net.DNSError
		var form *net.AddrError
		if errors.As(err, &dns) || errors.As(err, &form) {
			d.ResolveErr = err
		} else {
			d.ConnectErr = err
		}
		return d
	}
	defer raw.Close()
	conn := tls.Client(raw, &tls.Config{
		InsecureSkipVerify: true, // no verification: judgePeer judges the identity
		MinVersion:         tls.VersionTLS12,
		NextProtos:         []string{"h2"},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			d.Mutual = true
			if show == nil {
				return &tls.Certificate{}, nil
			}
			return show, nil
		},
	})
	if err := conn.HandshakeContext(ctx); err != nil {
		if ctx.Err() != nil { // HandshakeContext closes the connection, and says that
			err = ctx.Err()
		}
		d.HandshakeErr = err
		return d
	}
	state := conn.ConnectionState()
	d.Version, d.Certs = state.Version, state.PeerCertificates
	// In TLS 1.3 a client learns from the next message whether it is accepted (RFC 8446, 4.4.2.4): an alert, or the
	// first message of the listener, here the settings of HTTP/2. Read first: after a write that the listener never
	// reads, the alert may be lost.
	d.AfterErr = awaitByte(conn, time.Now().Add(timeout/4))
	if isTimeout(d.AfterErr) {
		if _, err := io.WriteString(conn,
			"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
			d.AfterErr = err
			return d
		}
		deadline, _ := ctx.Deadline()
		d.AfterErr = awaitByte(conn, deadline)
	}
	return d
}

func awaitByte(conn *tls.Conn, until time.Time) error {
	if err := conn.SetReadDeadline(until); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 1))
	return err
}
