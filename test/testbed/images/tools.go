package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kube-semaphore/semaphore/deploy/image"
)

// machineTools are programs of this machine that the image Testbed includes with all their libraries.
var machineTools = []string{"curl", "dash", "getent", "ip", "nc.openbsd", "ss"}

// standard are names of machineTools that scripts call. busybox has applets of these names, too, but scripts of other
// people's suites are written for these: busybox's nc knows a third of the options, and busybox's shell runs its own
// applets whatever is in PATH.
var standard = map[string]string{"nc": "nc.openbsd", "sh": "dash"}

// tools are the programs of the image Testbed besides its own.
type tools struct {
	busybox string
	// applets are the applets of busybox.
	applets []string
	// files map paths in the image to files of this machine: the tools, their libraries and the dynamic linker.
	files map[string]string
}

func toolsOf(ctx context.Context, busybox string) (tools, error) {
	t := tools{busybox: busybox, files: map[string]string{}}
	cmd := exec.CommandContext(ctx, busybox, "--list")
	out, err := cmd.Output()
	if err != nil {
		return t, fmt.Errorf("%s: %w", cmd, err)
	}
	for applet := range strings.FieldsSeq(string(out)) {
		if !slices.Contains(machineTools, applet) && standard[applet] == "" && applet != "busybox" {
			t.applets = append(t.applets, applet)
		}
	}
	for _, name := range machineTools {
		program, err := machineProgram(name)
		if err != nil {
			return t, err
		}
		t.files["/usr/bin/"+name] = program
		libraries, err := librariesOf(ctx, program)
		if err != nil {
			return t, err
		}
		for _, library := range libraries {
			t.files[inImage(library)] = library
		}
	}
	return t, nil
}

// machineProgram returns the path of the distribution's program of that name.
func machineProgram(name string) (string, error) {
	for _, dir := range []string{"/usr/bin", "/usr/sbin", "/bin", "/sbin"} {
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			return filepath.EvalSymlinks(file)
		}
	}
	return "", fmt.Errorf("this machine has no program %s: run `make deps`: %w", name, fs.ErrNotExist)
}

// librariesOf returns the shared libraries of a program and the dynamic linker.
func librariesOf(ctx context.Context, program string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "ldd", program)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmd, err)
	}
	return parseLibraries(string(out))
}

// parseLibraries parses the output of ldd: "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f…)", and for the
// dynamic linker "/lib64/ld-linux-x86-64.so.2 (0x…)". linux-vdso.so.1 comes from the kernel and is not a file.
func parseLibraries(out string) ([]string, error) {
	var libraries []string
	for line := range strings.Lines(out) {
		name, where, found := strings.Cut(strings.TrimSpace(line), " => ")
		if !found {
			where = name
		}
		if where == "not found" {
			return nil, fmt.Errorf("library %s: %w", name, fs.ErrNotExist)
		}
		if file, _, _ := strings.Cut(where, " "); path.IsAbs(file) {
			libraries = append(libraries, file)
		}
	}
	if len(libraries) == 0 {
		return nil, errors.New("ldd named no library")
	}
	return libraries, nil
}

// inImage returns the path of a library in the image, where /lib, /lib64 and so on are symlinks into /usr.
func inImage(library string) string {
	if strings.HasPrefix(library, "/lib") {
		return "/usr" + library
	}
	return library
}

// etc are configuration files that programs of the image read.
var etc = map[string]string{
	"/etc/passwd": "root:x:0:0:root:/root:/bin/sh\n" +
		"nonroot:x:65532:65532:nonroot:/nonexistent:/bin/false\n" +
		"nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
	"/etc/group":         "root:x:0:\nnonroot:x:65532:\nnogroup:x:65534:\n",
	"/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
	"/etc/protocols":     "icmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\nipv6-icmp 58 IPv6-ICMP\nsctp 132 SCTP\n",
}

// entries returns the layer of the tools.
func (t tools) entries() []image.Entry {
	entries := []image.Entry{
		image.Dir("/tmp", 0o777|fs.ModeSticky), image.Dir("/root", 0o700), image.Dir("/run", 0o755),
		image.Dir("/usr/bin", 0o755), image.Dir("/usr/sbin", 0o755), image.Dir("/usr/lib", 0o755),
		image.Dir("/usr/lib64", 0o755),
		image.Link("/bin", "usr/bin"), image.Link("/sbin", "usr/sbin"), image.Link("/lib", "usr/lib"),
		image.Link("/lib64", "usr/lib64"),
		image.Link("/var/run", "/run"),
		image.Copy("/usr/bin/busybox", 0o755, t.busybox),
	}
	entries = append(entries, image.Link("/usr/bin/socat", "/usr/local/bin/testbed"))
	for _, name := range slices.Sorted(maps.Keys(standard)) {
		entries = append(entries, image.Link("/usr/bin/"+name, standard[name]))
	}
	for _, applet := range t.applets {
		entries = append(entries, image.Link("/usr/bin/"+applet, "busybox"))
	}
	for _, file := range slices.Sorted(maps.Keys(t.files)) {
		entries = append(entries, image.Copy(file, 0o755, t.files[file]))
	}
	for _, file := range slices.Sorted(maps.Keys(etc)) {
		entries = append(entries, image.File(file, 0o644, etc[file]))
	}
	return entries
}

func testbedImage(busybox, program string) recipe {
	return recipe{name: "testbed", reference: Testbed, make: func(ctx context.Context) (v1.Image, error) {
		t, err := toolsOf(ctx, busybox)
		if err != nil {
			return nil, err
		}
		return simple(v1.Config{
			Env: []string{"PATH=/usr/local/bin:/usr/bin:/usr/sbin"}, Entrypoint: []string{"/usr/local/bin/testbed"},
		}, t.entries(), []image.Entry{image.Copy("/usr/local/bin/testbed", 0o755, program)})
	}}
}
