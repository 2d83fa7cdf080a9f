package testbed

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/kube-semaphore/semaphore/test/testbed/cgroup"
	"github.com/kube-semaphore/semaphore/test/testbed/images"
	"github.com/kube-semaphore/semaphore/test/testbed/spawn"
)

// file returns the path of a settings file of the node. Settings are outside the node's disk, in the testbed's
// directory, which the node mounts.
func (n *Node) file(name string) string { return filepath.Join(n.disk, "settings", name) }

// sysctls are the machine-wide sysctls that kubelet sets, with the values that it wants. The node mounts files over
// them, so kubelet finds them set already, and what it writes does not reach the machine.
var sysctls = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// writeFiles writes the node's disk before it boots, and removes what each boot creates again.
func (n *Node) writeFiles() error {
	c := n.cluster
	etc := filepath.Join(n.disk, "etc", "upper")
	for _, dir := range []string{"service", "calico"} {
		if err := os.RemoveAll(filepath.Join(etc, dir)); err != nil {
			return err
		}
	}
	for _, dir := range []string{
		"settings", "sysctl", "etc/upper/cni/net.d", "etc/upper/calico", "etc/upper/service", "opt/cni/bin", "var/tmp",
		"var/lib/kubelet", "var/lib/calico", "var/lib/cni", "var/log/pods", "var/log/containers",
		"var/log/calico",
	} {
		if err := os.MkdirAll(filepath.Join(n.disk, dir), 0o755); err != nil {
			return fmt.Errorf("make the disk of %s: %w", n.Name, err)
		}
	}
	if err := os.Symlink("../run", filepath.Join(n.disk, "var/run")); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the disk of %s: %w", n.Name, err)
	}
	id := sha256.Sum256([]byte(c.tb.ID + c.Name + n.Name))
	hosts := "127.0.0.1 localhost\n::1 localhost\n" + n.IP.String() + " " + n.hostname() + " " + n.Name + "\n"
	files := map[string][]byte{
		"etc/upper/hosts": []byte(hosts), "etc/upper/hostname": []byte(n.hostname() + "\n"),
		"etc/upper/machine-id": []byte(hex.EncodeToString(id[:16]) + "\n"),
		// Nothing listens for DNS at this address, so queries fail immediately: names outside the cluster do not exist.
		"etc/upper/resolv.conf": []byte("nameserver " + fabricPrefix.Addr().Next().String() +
			"\noptions timeout:1 attempts:1\n"),
		"settings/containerd.toml": []byte(containerdConfig),
	}
	for name, value := range sysctls {
		files["sysctl/"+strings.ReplaceAll(name, "/", ".")] = []byte(value + "\n")
	}
	for name, content := range files {
		path := filepath.Join(n.disk, name)
		_ = os.Remove(path) // it may be a link
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return fmt.Errorf("make the disk of %s: %w", n.Name, err)
		}
	}
	if _, err := os.Stat(n.file("kubelet.yaml")); err == nil {
		return nil // it boots again
	}
	return n.writeKubeletFiles()
}

// containerdConfig is the same for all nodes.
const containerdConfig = `version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
address = "` + containerdSocket + `"
[debug]
level = "warn"
[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "` + images.Pause + `"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/opt/cni/bin"]
conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "` + programsDir + `/runc"
SystemdCgroup = false
`

// writeKubeletFiles writes kubelet's certificates and configuration.
func (n *Node) writeKubeletFiles() error {
	c := n.cluster
	ips := []netip.Addr{n.IP}
	if n.IP6.IsValid() {
		ips = append(ips, n.IP6)
	}
	serving, err := c.access.ca.Server([]string{n.Name}, ips)
	if err != nil {
		return err
	}
	// The file is JSON, which is valid YAML.
	config, err := json.Marshal(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"failCgroupV1": false, "cgroupDriver": "cgroupfs", "cgroupRoot": "/" + n.cgroup(), "cgroupsPerQOS": true,
		"enforceNodeAllocatable":   []string{"pods"},
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": true},
			"x509": map[string]any{"clientCAFile": filepath.Join(c.dir, "pki", "ca.crt")},
		},
		"authorization": map[string]any{"mode": "Webhook"},
		"tlsCertFile":   n.file("kubelet.crt"), "tlsPrivateKeyFile": n.file("kubelet.key"),
		"clusterDNS": []string{c.addresses.dns.String()}, "clusterDomain": clusterDomain, "resolvConf": "/etc/resolv.conf",
		"failSwapOn":    false,
		"syncFrequency": FastSync.String(),
		// The disk belongs to the machine. Its usage must not cause evictions.
		"localStorageCapacityIsolation": false, "evictionHard": map[string]string{}, "imageGCHighThresholdPercent": 100,
		"volumePluginDir": "/var/lib/kubelet/volumeplugins",
		"healthzPort":     10248,
	})
	if err != nil {
		return err
	}
	if err := writeFiles(filepath.Join(n.disk, "settings"), map[string][]byte{
		"kubelet.yaml": config, "kubelet.crt": serving.Cert, "kubelet.key": serving.Key,
	}); err != nil {
		return err
	}
	return c.access.kubeconfig(n.file("kubelet.kubeconfig"), "system:node:"+n.Name, "system:nodes")
}

// mounts returns the node's root filesystem: the machine's programs, read-only; the machine's settings with the node's
// changes as an overlay; the node's own disk; and the testbed's programs.
func (n *Node) mounts() ([]spawn.Mount, error) {
	c, p := n.cluster, n.cluster.tb.paths
	mounts, err := systemMounts("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
	if err != nil {
		return nil, err
	}
	mounts = append(mounts,
		spawn.Mount{Source: "/etc", Target: "/etc", Overlay: filepath.Join(n.disk, "etc")},
		spawn.Mount{Source: filepath.Join(n.disk, "var"), Target: "/var"},
		spawn.Mount{Source: filepath.Join(n.disk, "opt/cni"), Target: "/opt/cni"},
		// The target is always /sys/fs/cgroup, wherever the machine has the hierarchy.
		spawn.Mount{Source: c.tb.cgroups.Mount, Target: cgroup.Mount},
		// ip-netns(8) lists the node's own namespace next to the namespaces of its pods.
		spawn.Mount{Source: n.Netns.Path(), Target: n.Netns.Path()},
		spawn.Mount{Source: c.tb.state.path, Target: c.tb.state.path},
		// The paths at which the calico/cni image expects the node's directories.
		spawn.Mount{Source: "/etc", Target: "/host/etc", Symlink: true},
		spawn.Mount{Source: "/opt", Target: "/host/opt", Symlink: true},
	)
	for name := range sysctls {
		if _, err := os.Stat("/proc/sys/" + name); err == nil {
			mounts = append(mounts, spawn.Mount{
				Source: filepath.Join(n.disk, "sysctl", strings.ReplaceAll(name, "/", ".")), Target: "/proc/sys/" + name,
			})
		}
	}
	mounts = append(mounts, programMounts(
		p.Containerd, p.ContainerdShim, p.Ctr, p.Runc, p.Kubelet, p.KubeProxy, p.CalicoNode, p.CalicoCNIInstall, p.Busybox,
		p.Kubectl)...)
	mounts = append(mounts, legacyIPTables()...)
	for _, dir := range []string{p.Bird, p.Runit} {
		programs, err := programsIn(dir)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, programMounts(programs...)...)
	}
	plugins, err := programsIn(p.CNIPlugins)
	if err != nil {
		return nil, err
	}
	for _, plugin := range plugins {
		mounts = append(mounts, spawn.Mount{Source: plugin, Target: "/opt/cni/bin/" + filepath.Base(plugin)})
	}
	for _, name := range []string{"calico", "calico-ipam"} {
		mounts = append(mounts, spawn.Mount{Source: p.CalicoCNI, Target: "/opt/cni/bin/" + name})
	}
	return mounts, nil
}

// programsIn are the programs in a directory.
func programsIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		// Stat follows symlinks: one program may have several names.
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			paths = append(paths, path)
		}
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("no programs are in %s", dir)
	}
	return paths, nil
}

// serves reports whether a container runtime answers the question with which kubelet starts, which exits otherwise.
// containerd listens before its plugin for kubelet is initialized.
func serves(ctx context.Context, socket string) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.Invoke(ctx, "/runtime.v1.RuntimeService/Version", &emptypb.Empty{}, &emptypb.Empty{})
}
