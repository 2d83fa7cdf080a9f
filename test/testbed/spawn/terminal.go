//go:build linux

package spawn

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"

	"golang.org/x/sys/unix"
)

// terminal is a pseudoterminal, see pty(7). inside is the end of the command, outside the end of the caller.
type terminal struct {
	outside, inside *os.File
	fd              int // of outside: File.Fd would make it blocking
}

func openTerminal() (*terminal, error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open pseudoterminal: %w", err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("unlock pseudoterminal: %w", err)
	}
	// TIOCGPTPEER opens the peer without a path, which would differ between mount namespaces.
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER,
		unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("open pseudoterminal: %w", errno)
	}
	return &terminal{os.NewFile(uintptr(fd), "ptmx"), os.NewFile(peer, "pts"), fd}, nil
}

func (t *terminal) Close() {
	_ = t.inside.Close()
	_ = t.outside.Close()
}

// serve copies between the terminal and the streams until the command has ended, and returns the command's error.
func (t *terminal) serve(cmd *exec.Cmd, in io.Reader, out io.Writer) error {
	_ = t.inside.Close() // otherwise reads of outside would not end with the command
	if file, ok := in.(*os.File); ok {
		restore, err := t.follow(file)
		if err != nil {
			return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
		}
		defer restore()
	}
	if in != nil {
		// The copy ends at the end of input, or with the first key after the command has ended, because a read from a
		// terminal cannot be canceled. So nobody waits for it.
		go func() { _, _ = io.Copy(t.outside, in) }()
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		if out != nil {
			_, _ = io.Copy(out, t.outside) // ends with EIO when the last process inside has closed the terminal
		}
	}()
	err := cmd.Wait()
	<-copied
	return err
}

// follow sets the caller's terminal to raw mode and forwards its size until restore is called. It ignores a file that
// is no terminal.
func (t *terminal) follow(file *os.File) (restore func(), err error) {
	fd := int(file.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return func() {}, nil
	}
	raw := *before
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cflag = raw.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		return nil, fmt.Errorf("make terminal raw: %w", err)
	}
	resize := func() {
		if size, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ); err == nil {
			_ = unix.IoctlSetWinsize(t.fd, unix.TIOCSWINSZ, size)
		}
	}
	resize()
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, unix.SIGWINCH)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range changes {
			resize()
		}
	}()
	return func() {
		signal.Stop(changes)
		close(changes)
		<-ended
		_ = unix.IoctlSetTermios(fd, unix.TCSETS, before)
	}, nil
}
