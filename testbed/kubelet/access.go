//go:build linux

package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/kube-semaphore/semaphore/testbed/container"
	"github.com/kube-semaphore/semaphore/testbed/netns"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Pod is what runs of a pod at the moment it was asked for.
type Pod struct {
	Namespace, Name, Node string
	UID                   types.UID
	// IP is the pod's address, or its node's on the host network.
	IP netip.Addr
	// Netns is where the pod's processes are: its own namespace, or its node's on the host network.
	Netns *netns.Namespace
	// Process is the process of the first container, nil while it does not run.
	Process *container.Process
	// Containers are the running processes by container name.
	Containers map[string]*container.Process
}

// Pod gives the pod under a name, if it runs here and has its network.
func (k *Kubelet) Pod(namespace, name string) (*Pod, bool) {
	for _, w := range k.allWorkers() {
		if w.key != namespace+"/"+name {
			continue
		}
		if p := w.view(); p != nil {
			return p, true
		}
	}
	return nil, false
}

func (w *worker) view() *Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &Pod{
		Namespace: w.pod.Namespace, Name: w.pod.Name, Node: w.node.Name, UID: w.uid,
		Containers: map[string]*container.Process{},
	}
	switch {
	case w.gone:
		return nil
	case w.network != nil:
		p.IP, p.Netns = w.network.ip, w.network.netns
	case w.pod.Spec.HostNetwork:
		p.IP, p.Netns = w.node.IP, w.node.Netns
	default:
		return nil
	}
	for name, process := range w.processes {
		p.Containers[name] = process
	}
	p.Process = p.Containers[w.pod.Spec.Containers[0].Name]
	return p
}

// Hold keeps containers that exit from being restarted, of all pods in the namespace whose name is or begins with
// nameOrPrefix, until release is called. Containers that run are left alone. It is for tests of what happens while
// something stays down.
func (k *Kubelet) Hold(namespace, nameOrPrefix string) (release func()) {
	h := &hold{namespace, nameOrPrefix}
	k.mu.Lock()
	k.holds[h] = true
	k.mu.Unlock()
	return func() {
		k.mu.Lock()
		delete(k.holds, h)
		k.mu.Unlock()
		for _, w := range k.allWorkers() {
			w.poke()
		}
	}
}

// LogPath is the file that has the output of a container, of all its runs, below the Dir of a Config.
func LogPath(dir, namespace, pod, container string) string {
	return filepath.Join(dir, "logs", strings.Join([]string{namespace, pod, container}, "_")+".log")
}

func (k *Kubelet) pidDir() string { return filepath.Join(k.config.Dir, "pids") }

// LookupPID finds the process of a running container, from any program: dir is the Dir of the Config, an empty container
// stands for the pod's only one. The error is fs.ErrNotExist when it does not run.
func LookupPID(dir, namespace, pod, container string) (int, error) {
	prefix := filepath.Join(dir, "pids", namespace+"_"+pod+"_")
	path := prefix + container
	if container == "" {
		paths, err := filepath.Glob(prefix + "*")
		switch {
		case err != nil:
			return 0, err
		case len(paths) == 0:
			return 0, fmt.Errorf("pod %s/%s runs no container here: %w", namespace, pod, fs.ErrNotExist)
		case len(paths) > 1:
			names := make([]string, len(paths))
			for i, p := range paths {
				names[i] = strings.TrimPrefix(p, prefix)
			}
			return 0, fmt.Errorf("pod %s/%s runs several containers, name one of %s", namespace, pod, strings.Join(names, ", "))
		}
		path = paths[0]
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("container %s of pod %s/%s does not run here: %w", container, namespace, pod, err)
	}
	var pid int
	var started string
	if _, err := fmt.Sscan(string(data), &pid, &started); err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	if now, err := startTime(pid); err != nil || now != started {
		return 0, fmt.Errorf("container %s of pod %s/%s does not run any more: %w", container, namespace, pod, fs.ErrNotExist)
	}
	return pid, nil
}

func (k *Kubelet) pidFile(pod *corev1.Pod, container string) string {
	return filepath.Join(k.pidDir(), pod.Namespace+"_"+pod.Name+"_"+container)
}

// writePID notes a container's process for LookupPID.
func (k *Kubelet) writePID(pod *corev1.Pod, container string, pid int) error {
	started, err := startTime(pid)
	if err != nil {
		started = "gone" // it ended at once, and its worker will see that
	}
	return os.WriteFile(k.pidFile(pod, container), fmt.Append(nil, pid, " ", started), 0o644)
}

func (k *Kubelet) removePID(pod *corev1.Pod, container string) {
	if err := os.Remove(k.pidFile(pod, container)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		k.log.Warn("cannot remove pid file", "err", err)
	}
}

// startTime tells a process from an earlier one with the same pid: field 22 of /proc/PID/stat, proc_pid_stat(5).
func startTime(pid int) (string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The second field, the program's name in parentheses, may hold anything.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 {
		return "", fmt.Errorf("stat of process %d has %d fields", pid, len(fields))
	}
	return fields[19], nil
}
