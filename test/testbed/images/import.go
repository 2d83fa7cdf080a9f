package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/kube-semaphore/semaphore/deploy/image"
	"github.com/kube-semaphore/semaphore/test/testbed/components"
	"github.com/kube-semaphore/semaphore/test/testbed/spawn"
)

// importConfig is for a containerd that only imports. Nodes find what it wrote as their own.
const importConfig = `version = 3
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]
[debug]
level = "warn"
`

// importAll runs a containerd with a root directory until it has imported the images.
func importAll(ctx context.Context, dir string, paths components.Paths, images []imported) (err error) {
	work, err := os.MkdirTemp("", "semaphore-images-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	root, archives := filepath.Join(work, "root"), filepath.Join(work, "archives")
	for _, d := range []string{dir, root, archives} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(archives, "config.toml"), []byte(importConfig), 0o644); err != nil {
		return err
	}
	// Everything in its namespaces ends with it, and it with this process.
	first, err := spawn.Start(spawn.Spec{Name: "import of images", Init: true, Root: root, Mounts: []spawn.Mount{
		{Source: paths.Containerd, Target: "/bin/containerd", ReadOnly: true},
		{Source: paths.Ctr, Target: "/bin/ctr", ReadOnly: true},
		{Source: archives, Target: "/archives", ReadOnly: true},
		{Source: dir, Target: "/var/lib/containerd"},
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, first.Stop(0)) }()
	env, log := []string{"PATH=/bin"}, filepath.Join(work, "log")
	daemon, err := spawn.StartIn(first.PID(), spawn.Spec{Name: "containerd", Env: env, Output: log,
		Args: []string{"containerd", "--config", "/archives/config.toml"}})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			said, _ := os.ReadFile(log)
			err = fmt.Errorf("%w\ncontainerd: %s", err, said)
		}
	}()
	if err := answers(ctx, daemon, fmt.Sprintf("/proc/%d/root/run/containerd/containerd.sock", first.PID())); err != nil {
		return err
	}
	ctr := func(args ...string) error {
		var said bytes.Buffer
		err := spawn.Join(ctx, first.PID(), spawn.JoinSpec{Env: env, Stderr: &said,
			Args: append([]string{"ctr", "--namespace", "k8s.io", "images"}, args...)})
		if err != nil {
			err = fmt.Errorf("%w: %s", err, &said)
		}
		return err
	}
	for _, made := range images {
		file := made.name + ".tar"
		err := image.Write(filepath.Join(archives, file), made.reference, image.Platform{Image: made.Image})
		if err == nil {
			err = ctr("import", "--local", "/archives/"+file)
		}
		if err != nil {
			return fmt.Errorf("import image %s: %w", made.reference, err)
		}
	}
	for _, name := range ofSuite {
		if err := ctr("tag", Testbed, name); err != nil {
			return fmt.Errorf("image %s: %w", name, err)
		}
	}
	// It closes its databases.
	if err := daemon.Stop(time.Minute); err != nil {
		return err
	}
	if end := daemon.Wait(); end.Code != 0 {
		return fmt.Errorf("containerd ended with %d", end.Code)
	}
	return nil
}

// answers waits until a process listens on its socket.
func answers(ctx context.Context, p *spawn.Process, socket string) error {
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-p.Done():
			return fmt.Errorf("containerd ended with %d", p.Wait().Code)
		case <-ctx.Done():
			return fmt.Errorf("waiting for containerd: %w: %w", ctx.Err(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
