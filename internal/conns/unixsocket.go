package conns

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
)

// This file listens on unix sockets for the own user only.

// Listen listens at path, and replaces a socket that an earlier process left there. It removes nothing but a socket:
// the path comes from a configuration, and could be that of another file. It fails if anything else is at path.
func Listen(path string) (net.Listener, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s exists and is no socket: name another path, or remove it", path)
	default:
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// ToRead returns the path at which a part answers questions and takes no orders, beside its own socket; empty for none.
func ToRead(own string) string { return beside(own, ".read") }

// ToLeader returns the path at which a standby relays semaphorectl to the leader, beside its own socket; empty for
// none. Its suffix differs from that of parts' own sockets.
func ToLeader(own string) string { return beside(own, ".leader") }

func beside(own, suffix string) string {
	if own == "" {
		return ""
	}
	return own + suffix
}
