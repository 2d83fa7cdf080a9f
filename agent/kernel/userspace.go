package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/ipc"
	"golang.zx2c4.com/wireguard/tun"
)

// UserspaceCommand is the subcommand by which the agent starts itself as a device's process.
const UserspaceCommand = "wireguard-go"

// socketDir is where wireguard-go, and programs that configure its devices, expect the sockets.
const socketDir = "/var/run/wireguard"

func socketPath(device string) string { return filepath.Join(socketDir, device+".sock") }

// cloneDevice is where TUN interfaces are created (Documentation/networking/tuntap.rst of Linux).
const cloneDevice = "/dev/net/tun"

// createTUN creates a TUN interface as tun.CreateTUN does, but never takes one that exists: a persistent interface of
// another program may get the name after the agent has looked. The error is then EBUSY.
func createTUN(name string, mtu int) (tun.Device, error) {
	fd, err := unix.Open(cloneDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cloneDevice, err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		// wireguard-go reads packets without protocol information and with the header of offloads.
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_TUN_EXCL)
		err = errors.Join(unix.IoctlIfreq(fd, unix.TUNSETIFF, request), unix.SetNonblock(fd, true))
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	// The runtime polls the descriptor from here on: before TUNSETIFF that would see an error for good.
	return tun.CreateTUNFromFile(os.NewFile(uintptr(fd), cloneDevice), mtu)
}

// noEndpoint ends wireguard-go's message, every 5 s, about a peer to which pods send before it has called. The agent
// reports such peers.
const noEndpoint = "no known endpoint for peer"

// RunUserspace runs a device of wireguard-go: it creates the TUN interface and the UAPI socket, and returns when the
// interface is deleted, or deletes it when ctx ends. It fails if it cannot create them, or the socket breaks.
func RunUserspace(ctx context.Context, name string, mtu int) error {
	// The device outlives the agent, to whose standard error it logs: a write to a pipe without a reader must not end
	// all tunnels.
	signal.Ignore(syscall.SIGPIPE)
	t, err := createTUN(name, mtu)
	if err != nil {
		return fmt.Errorf("TUN interface %s: %w", name, err)
	}
	log := slog.With("device", name)
	if err := filterLinkMessages(t); err != nil {
		log.Warn("the device will end when the kernel sends more events than it reads, such as for the addresses of many "+
			"Services", "error", err)
	}
	d := device.NewDevice(t, conn.NewDefaultBind(), &device.Logger{Verbosef: device.DiscardLogf,
		Errorf: func(format string, args ...any) {
			if text := fmt.Sprintf(format, args...); !strings.HasSuffix(text, noEndpoint) {
				log.Error("wireguard-go: " + text)
			}
		}})
	defer d.Close()
	file, err := ipc.UAPIOpen(name)
	if err != nil {
		return fmt.Errorf("UAPI socket of %s: %w", name, err)
	}
	socket, err := ipc.UAPIListen(name, file)
	if err != nil {
		return fmt.Errorf("UAPI socket of %s: %w", name, err)
	}
	defer socket.Close() // removes its file, too
	failed := make(chan error, 1)
	go func() { // ends when the socket is closed
		for {
			c, err := socket.Accept()
			if err != nil {
				failed <- err
				return
			}
			go d.IpcHandle(c) // ends when the client closes
		}
	}()
	select {
	case <-d.Wait():
		return nil
	case <-ctx.Done():
		return nil
	case err := <-failed:
		if os.IsNotExist(err) {
			return nil
		}
		return fmt.Errorf("UAPI socket of %s: %w", name, err)
	}
}

// filterLinkMessages makes the kernel send a TUN device only messages about links, because it needs its own, with a
// large buffer. wireguard-go subscribes to addresses as well, has room for a few hundred messages, and ends the device
// when there are more: kube-proxy in its mode ipvs, which gives the node an address for each Service, causes that when
// it starts. The library does not export the socket.
func filterLinkMessages(t tun.Device) error {
	field := reflect.Indirect(reflect.ValueOf(t)).FieldByName("netlinkSock")
	if !field.IsValid() || field.Kind() != reflect.Int {
		return errors.New("this version of wireguard-go has no socket of that name")
	}
	filter := []bpf.Instruction{
		EventType,
		IfEventType(unix.RTM_NEWLINK, 1, 0),
		DropEvent, TakeEvent,
	}
	fd := int(field.Int())
	err := attachFilter(fd, filter)
	return errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, eventBuffer))
}

func isServed(device string) bool {
	c, err := net.Dial("unix", socketPath(device))
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// RemoveDeadSocket removes the socket file of a device whose process was killed. It reports whether there was one. A
// socket that is served remains: its device may be in another network namespace. It fails if the file cannot be
// removed.
func RemoveDeadSocket(device string) (bool, error) {
	if _, err := os.Lstat(socketPath(device)); errors.Is(err, fs.ErrNotExist) || isServed(device) {
		return false, nil
	}
	err := os.Remove(socketPath(device))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// RemoveDeadSockets is RemoveDeadSocket for the devices that which selects, and returns those that had one. It fails if
// it cannot read the directory, and for each socket that it cannot remove.
func RemoveDeadSockets(which func(device string) bool) (devices []string, err error) {
	entries, err := os.ReadDir(socketDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("sockets of userspace devices: %w", err)
	}
	for _, e := range entries {
		device, ok := strings.CutSuffix(e.Name(), ".sock")
		if !ok || !which(device) {
			continue
		}
		removed, failed := RemoveDeadSocket(device)
		if err = errors.Join(err, failed); removed {
			devices = append(devices, device)
		}
	}
	return devices, err
}

// plain converts the number in an error of wireguard-go, which its client returns as text ("errno=-98"), to an error
// that can be compared, like the kernel's.
func plain(err error) error {
	if err == nil {
		return nil
	}
	_, number, ok := strings.Cut(err.Error(), "wguser: errno=-")
	errno, parse := strconv.ParseUint(number, 10, 31)
	if !ok || parse != nil {
		return err
	}
	return fmt.Errorf("wireguard-go: %w", unix.Errno(errno))
}
