package wireguard

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/ipc"
	"golang.zx2c4.com/wireguard/tun"
)

// UserspaceCommand is the subcommand under which the agent starts itself as a device's process.
const UserspaceCommand = "wireguard-go"

// RunUserspace carries a device of wireguard-go: it makes the TUN interface and the UAPI socket, and
// returns when the interface is deleted, or ctx ends and so it is.
func RunUserspace(ctx context.Context, name string, mtu int) error {
	t, err := tun.CreateTUN(name, mtu)
	if err != nil {
		return fmt.Errorf("TUN interface %s: %w", name, err)
	}
	log := slog.With("device", name)
	d := device.NewDevice(t, conn.NewDefaultBind(), &device.Logger{
		Verbosef: device.DiscardLogf,
		Errorf:   func(format string, args ...any) { log.Error("wireguard-go: " + fmt.Sprintf(format, args...)) },
	})
	defer d.Close()
	file, err := ipc.UAPIOpen(name)
	if err != nil {
		return fmt.Errorf("UAPI socket of %s: %w", name, err)
	}
	socket, err := ipc.UAPIListen(name, file)
	if err != nil {
		return fmt.Errorf("UAPI socket of %s: %w", name, err)
	}
	defer socket.Close()
	failed := make(chan error, 1)
	go func() { // ends when the socket is closed
		for {
			c, err := socket.Accept()
			if err != nil {
				failed <- err
				return
			}
			go d.IpcHandle(c) // ends when the caller hangs up
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
