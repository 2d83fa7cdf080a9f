// Package unixsocket listens at unix sockets that are for the own user only.
//
// It is a leaf, and imports nothing of ours.
package unixsocket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
)

// Listen listens at path, in the place of a socket that an earlier process has left there. Nothing but a socket is removed: the
// path comes from a configuration, and could be that of something precious.
func Listen(path string) (net.Listener, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s is there and is no socket: name another path, or remove it", path)
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

// ToLeader is the path at which a standby carries semaphorectl to the leader, beside its own socket; empty for none. Its
// name does not end like those of parts' own sockets.
func ToLeader(own string) string {
	if own == "" {
		return ""
	}
	return own + ".leader"
}
