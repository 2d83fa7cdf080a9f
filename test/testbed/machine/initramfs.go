package machine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/kube-semaphore/semaphore/test/testbed/machine/job"
)

// bootModules are the kernel modules for mounting the host's files.
var bootModules = []string{"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"}

// writeInitramfs writes dir/initramfs with init, its job, and the modules for mounting the host's files.
func (m *Machine) writeInitramfs(ctx context.Context, dir string, commands []job.Command) error {
	j := job.Job{ModuleTree: m.Kernel.Modules, Commands: commands}
	dependencies, err := os.Open(filepath.Join(m.Kernel.Modules, "modules.dep"))
	if err != nil {
		return err
	}
	defer dependencies.Close()
	files, err := loadOrder(dependencies, bootModules)
	if err != nil {
		return fmt.Errorf("%s: %w", dependencies.Name(), err)
	}
	init := filepath.Join(dir, "init")
	if _, err := goOutput(ctx, m.Repository, "build", "-trimpath", "-ldflags=-s -w", "-o", init, initPackage); err != nil {
		return err
	}
	archive, err := os.Create(filepath.Join(dir, "initramfs"))
	if err != nil {
		return err
	}
	defer archive.Close()
	buffered := bufio.NewWriter(archive)
	w := &cpioWriter{w: buffered}
	// init logs to the console before it has mounted anything.
	w.directory("dev")
	w.characterDevice("dev/console", 5, 1)
	w.directory("modules")
	for _, file := range files {
		data, err := os.ReadFile(filepath.Join(m.Kernel.Modules, file))
		if err != nil {
			return err
		}
		name := "modules/" + path.Base(file)
		w.file(name, data)
		j.Modules = append(j.Modules, "/"+name)
	}
	program, err := os.ReadFile(init)
	if err != nil {
		return err
	}
	w.file("init", program)
	data, err := json.Marshal(j)
	if err != nil {
		return err
	}
	w.file(strings.TrimPrefix(job.File, "/"), data)
	w.end()
	return errors.Join(w.err, buffered.Flush(), archive.Close())
}

// loadOrder returns the files of modules and of their dependencies in load order, from modules.dep(5): "FILE: NEEDED…".
// There, a dependency comes after the modules that need it.
func loadOrder(dependencies io.Reader, modules []string) ([]string, error) {
	needs, file := map[string][]string{}, map[string]string{}
	for s := bufio.NewScanner(dependencies); ; {
		if !s.Scan() {
			if err := s.Err(); err != nil {
				return nil, err
			}
			break
		}
		name, needed, _ := strings.Cut(s.Text(), ":")
		needs[name] = strings.Fields(needed)
		module, _, _ := strings.Cut(path.Base(name), ".ko")
		file[strings.ReplaceAll(module, "-", "_")] = name
	}
	var order []string
	seen := map[string]bool{}
	add := func(name string) {
		if !seen[name] {
			seen[name] = true
			order = append(order, name)
		}
	}
	for _, module := range modules {
		name, ok := file[module]
		if !ok {
			return nil, fmt.Errorf("there is no module %s", module)
		}
		for i := len(needs[name]) - 1; i >= 0; i-- {
			add(needs[name][i])
		}
		add(name)
	}
	return order, nil
}

// cpioWriter writes the "newc" format, see Documentation/driver-api/early-userspace/buffer-format.rst of the kernel.
// After its first error it does nothing.
type cpioWriter struct {
	w     io.Writer
	inode int
	err   error
}

func (c *cpioWriter) directory(name string)         { c.entry(name, 0o040755, nil, 0, 0) }
func (c *cpioWriter) file(name string, data []byte) { c.entry(name, 0o100755, data, 0, 0) }
func (c *cpioWriter) characterDevice(name string, major, minor int) {
	c.entry(name, 0o020600, nil, major, minor)
}
func (c *cpioWriter) end() { c.entry("TRAILER!!!", 0, nil, 0, 0) }

func (c *cpioWriter) entry(name string, mode int, data []byte, major, minor int) {
	if c.err != nil {
		return
	}
	c.inode++
	header := "070701"
	for _, field := range []int{
		c.inode, mode, 0, 0, 1, 0, len(data), // inode, mode, uid, gid, links, mtime, size
		0, 0, major, minor, len(name) + 1, 0, // device it is on, device it is, size of the name with its NUL, checksum
	} {
		header += fmt.Sprintf("%08x", field)
	}
	// Name and data are padded to a multiple of four bytes.
	head := header + name + "\x00"
	_, err := io.WriteString(c.w, head+strings.Repeat("\x00", -len(head)&3))
	if err == nil {
		_, err = c.w.Write(append(data, make([]byte, -len(data)&3)...))
	}
	c.err = err
}
