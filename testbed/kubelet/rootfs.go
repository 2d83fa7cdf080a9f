//go:build linux

package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/kube-semaphore/semaphore/testbed/container"
	corev1 "k8s.io/api/core/v1"
)

// etcFiles are the same in every pod.
var etcFiles = map[string]string{
	"passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n" +
		"nonroot:x:65532:65532:nonroot:/home/nonroot:/usr/sbin/nologin\n",
	"group":         "root:x:0:\nnobody:x:65534:\nnonroot:x:65532:\ntty:x:5:\n",
	"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nnetworks: files\nservices: files\nprotocols: files\n",
}

// etcOfMachine are taken from the machine where it has them: certificates of public authorities, what the dynamic linker
// knows, the links behind commands that have several implementations, names of ports.
var etcOfMachine = []string{"ssl", "ca-certificates", "alternatives", "ld.so.cache", "services", "protocols", "iproute2"}

// writeEtc writes the files that all pods share.
func writeEtc(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write /etc of pods: %w", err)
	}
	for name, text := range etcFiles {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("write /etc of pods: %w", err)
		}
	}
	return nil
}

// writePodEtc writes the files that the containers of a pod share.
func writePodEtc(dir string, pod *corev1.Pod, node *machine, ip netip.Addr, dns netip.Addr, domain string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write /etc of pod: %w", err)
	}
	nodeResolver, err := os.ReadFile(filepath.Join(node.Root, "etc/resolv.conf"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read resolv.conf of node %s: %w", node.Name, err)
	}
	for name, text := range map[string]string{
		"hosts":       hosts(pod, ip, node.Name, domain),
		"hostname":    hostname(pod, node.Name) + "\n",
		"resolv.conf": resolvConf(pod, dns, domain, string(nodeResolver)),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("write /etc of pod: %w", err)
		}
	}
	return nil
}

// machineMounts show the machine's programs and libraries, read-only. /usr is shown by its parts, for /usr/local is the
// image's: binaries of images are bound there.
func machineMounts() ([]container.Mount, error) {
	var mounts []container.Mount
	usr, err := os.ReadDir("/usr")
	if err != nil {
		return nil, fmt.Errorf("list the machine's programs: %w", err)
	}
	for _, e := range usr {
		if e.IsDir() && e.Name() != "local" {
			path := "/usr/" + e.Name()
			mounts = append(mounts, container.Mount{Source: path, Target: path, ReadOnly: true})
		}
	}
	for _, path := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, fmt.Errorf("list the machine's programs: %w", err)
		case info.Mode()&fs.ModeSymlink != 0: // merged /usr
			target, err := os.Readlink(path)
			if err != nil {
				return nil, fmt.Errorf("list the machine's programs: %w", err)
			}
			mounts = append(mounts, container.Mount{Source: target, Target: path, Symlink: true})
		default:
			mounts = append(mounts, container.Mount{Source: path, Target: path, ReadOnly: true})
		}
	}
	for _, name := range etcOfMachine {
		path := filepath.Join("/etc", name)
		if _, err := os.Stat(path); err == nil {
			mounts = append(mounts, container.Mount{Source: path, Target: path, ReadOnly: true})
		}
	}
	return append(mounts, container.Mount{Source: "/run", Target: "/var/run", Symlink: true}), nil
}

// rootMounts are all mounts of a container's root but its volumes.
func rootMounts(programs []container.Mount, sharedEtc, podEtc string, image Image) []container.Mount {
	mounts := programs[:len(programs):len(programs)]
	for name := range etcFiles {
		mounts = append(mounts, container.Mount{Source: filepath.Join(sharedEtc, name), Target: "/etc/" + name, ReadOnly: true})
	}
	for _, name := range []string{"hosts", "hostname", "resolv.conf"} {
		mounts = append(mounts, container.Mount{Source: filepath.Join(podEtc, name), Target: "/etc/" + name})
	}
	for _, target := range sortedKeys(image.Binaries) {
		mounts = append(mounts, container.Mount{Source: image.Binaries[target], Target: target, ReadOnly: true})
	}
	return mounts
}
