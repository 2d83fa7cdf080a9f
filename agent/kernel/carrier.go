package kernel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kube-semaphore/semaphore/internal/conns"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
)

// startTimeout is how long a device's process may take until the device answers.
const startTimeout = 10 * time.Second

// startUserspace starts this program again as the device's process, and waits until the device answers. See
// docs/adr/0003-userspace-wireguard.md.
func startUserspace(ctx context.Context, wg *wgctrl.Client, name string, mtu int) error {
	cmd := exec.Command("/proc/self/exe", UserspaceCommand, name, fmt.Sprint(mtu))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	// A session of its own, so that signals to the parent's process group do not end the tunnel.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	// The process of a device that was just deleted still has its socket for a moment.
	for isServed(name) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("another process serves %s, but the interface does not exist: %w", socketPath(name), ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	// The child lives as long as its link, possibly longer than this process; the goroutine waits for it, so that no
	// zombie remains.
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		if _, err := wg.Device(name); err == nil {
			return nil
		} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ECONNREFUSED) {
			return err
		}
		select {
		case err := <-ended:
			if err == nil {
				err = errors.New("no error")
			}
			return fmt.Errorf("wireguard-go ended immediately (does /dev/net/tun exist, and is /var/run/wireguard "+
				"writable?): %w", err)
		case <-ctx.Done():
			return errors.Join(ctx.Err(), cmd.Process.Kill())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// ServeUserspace starts devices' processes for an agent in another container. The agent sends HTTP over a unix socket:
// POST /devices/NAME?mtu=BYTES, answered by 204 once the device answers. It returns when ctx ends, and leaves the
// processes, which end with their link or the container. It fails if WireGuard's control interface or the socket cannot
// be opened.
func ServeUserspace(ctx context.Context, socket string) error {
	wg, err := wgctrl.New()
	if err != nil {
		return fmt.Errorf("WireGuard control: %w", err)
	}
	defer wg.Close()
	listener, err := conns.Listen(socket)
	if err != nil {
		return fmt.Errorf("socket for agents: %w", err)
	}
	var one sync.Mutex // serializes requests for the same device
	mux := http.NewServeMux()
	mux.HandleFunc("POST /devices/{name}", func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("name")
		mtu, err := strconv.Atoi(r.FormValue("mtu"))
		if err != nil || name != filepath.Base(name) || strings.HasPrefix(name, ".") || len(name) >= unix.IFNAMSIZ {
			http.Error(w, fmt.Sprintf("device %q, mtu %q: one of them is not valid", name, r.FormValue("mtu")),
				http.StatusBadRequest)
			return
		}
		one.Lock()
		defer one.Unlock()
		if err := startUserspace(r.Context(), wg, name, mtu); err != nil {
			slog.Warn("cannot create the device; the agent asks again", "device", name, "error", err)
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		slog.Info("created the device", "device", name, "mtu", mtu)
		w.WriteHeader(http.StatusNoContent)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("socket for agents %s: %w", socket, err)
	}
	return nil
}

// requestUserspace requests a device at the socket of a ServeUserspace.
func requestUserspace(ctx context.Context, socket, name string, mtu int) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout+5*time.Second)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	at := url.URL{Scheme: "http", Host: "localhost", Path: "/devices/" + name,
		RawQuery: url.Values{"mtu": {strconv.Itoa(mtu)}}.Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at.String(), nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("requesting its process (does the container with `semaphore-agent %s --serve` run?): %w",
			UserspaceCommand, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusNoContent {
		why, err := io.ReadAll(io.LimitReader(answer.Body, 1024))
		return errors.Join(fmt.Errorf("requesting its process: %s: %s", answer.Status, strings.TrimSpace(string(why))), err)
	}
	return nil
}
