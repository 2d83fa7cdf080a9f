package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testbed/spawn"
)

// Pod is a snapshot of a pod's running containers.
type Pod struct {
	Namespace, Name string
	UID             types.UID
	Node            *Node
	// IP is the pod's primary address, which is the node's on the host network. IPs are all of its addresses.
	IP  netip.Addr
	IPs []netip.Addr
	// Netns is the network namespace of the pod, or of its node on the host network. A pod's own namespace is opened
	// through one of the pod's processes and is valid while that process lives.
	Netns *netns.Namespace
	// Containers are the running containers by name.
	Containers map[string]Container
	// Container is the first container of the pod's specification; its PID is 0 while it does not run.
	Container Container
}

// Container describes a running container of a pod.
type Container struct {
	// ID is containerd's.
	ID string
	// PID is the container's first process, in this process's pid namespace.
	PID int
	// PIDs are all processes of the container, in ascending order.
	PIDs []int
}

// containerRuntime is the prefix of container IDs in a pod's status.
const containerRuntime = "containerd://"

// Pod returns the running containers of a pod. It is an error if the pod has no address or no running container.
func (c *Cluster) Pod(ctx context.Context, namespace, name string) (*Pod, error) {
	object, err := c.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s of %s: %w", namespace, name, c.Name, err)
	}
	p, err := c.running(object)
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s of %s: %w", namespace, name, c.Name, err)
	}
	return p, nil
}

// running finds the processes of a pod's containers.
func (c *Cluster) running(object *corev1.Pod) (*Pod, error) {
	p := &Pod{
		Namespace: object.Namespace, Name: object.Name, UID: object.UID, Node: c.Node(object.Spec.NodeName),
		Containers: map[string]Container{},
	}
	if p.Node == nil {
		return nil, errors.New("it is on no node")
	}
	for _, ip := range object.Status.PodIPs {
		a, err := netip.ParseAddr(ip.IP)
		if err != nil {
			return nil, err
		}
		p.IPs = append(p.IPs, a)
	}
	if len(p.IPs) == 0 {
		return nil, errors.New("it has no address")
	}
	p.IP = p.IPs[0]
	for _, s := range slices.Concat(object.Status.ContainerStatuses, object.Status.InitContainerStatuses,
		object.Status.EphemeralContainerStatuses) {
		if s.State.Running == nil {
			continue
		}
		container, err := p.Node.container(object, strings.TrimPrefix(s.ContainerID, containerRuntime))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has ended, and kubelet has not reported it to the apiserver yet
		}
		if err != nil {
			return nil, err
		}
		p.Containers[s.Name] = container
		if s.Name == object.Spec.Containers[0].Name {
			p.Container = container
		}
	}
	if len(p.Containers) == 0 {
		return nil, errors.New("it runs no container")
	}
	if object.Spec.HostNetwork {
		p.Netns = p.Node.Netns
	} else {
		for _, container := range p.Containers {
			p.Netns = netns.OfProcess(container.PID)
			break
		}
	}
	return p, nil
}

// container finds the processes of a container by its control group, whose path kubelet and runc derive from the pod.
func (n *Node) container(pod *corev1.Pod, id string) (Container, error) {
	group := n.cgroup() + "/kubepods"
	if class := pod.Status.QOSClass; class != corev1.PodQOSGuaranteed {
		group += "/" + strings.ToLower(string(class))
	}
	group += "/pod" + string(pod.UID) + "/" + id
	pids, err := n.cluster.tb.cgroups.Processes(group)
	if err != nil {
		return Container{}, err
	}
	// containerd records the PID of the container's first process in the node's PID namespace.
	data, err := os.ReadFile(n.path("/run/containerd/io.containerd.runtime.v2.task/k8s.io/" + id + "/init.pid"))
	if err != nil {
		return Container{}, err
	}
	first := strings.TrimSpace(string(data))
	for _, pid := range pids {
		ids, err := namespaceIDs(pid)
		if err != nil {
			continue // it has just ended
		}
		// NSpid lists the PIDs from the outermost namespace inwards; the second is the one in the node's
		// (proc_pid_status(5)).
		if len(ids) > 1 && ids[1] == first {
			return Container{ID: id, PID: pid, PIDs: pids}, nil
		}
	}
	return Container{}, fmt.Errorf("container %s: first process %s is not among %v: %w", id, first, pids, fs.ErrNotExist)
}

// namespaceIDs returns the PIDs of a process in its nested PID namespaces, that of this process first.
func namespaceIDs(pid int) ([]string, error) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(status)) {
		if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			return strings.Fields(ids), nil
		}
	}
	return nil, errors.New("no NSpid")
}

// ExecPod runs a command in the first container of a pod and returns its stdout. The error includes its stderr. It
// calls runc on the node, as containerd does for `kubectl exec`, with the container's user, environment and privileges.
// The apiserver, kubelet and containerd are not involved and may be down.
func (c *Cluster) ExecPod(ctx context.Context, namespace, pod string, args ...string) (string, error) {
	p, err := c.Pod(ctx, namespace, pod)
	if err != nil {
		return "", err
	}
	return p.Exec(ctx, args...)
}

// Exec is ExecPod for a known pod.
func (p *Pod) Exec(ctx context.Context, args ...string) (string, error) {
	var stdout bytes.Buffer
	err := p.ExecTo(ctx, &stdout, args...)
	return stdout.String(), err
}

// ExecTo is Exec with a writer for stdout. A process that outlives ctx ends when it writes to a pipe that nobody reads.
func (p *Pod) ExecTo(ctx context.Context, stdout io.Writer, args ...string) error {
	fail := func(err error, more string) error {
		return fmt.Errorf("%s in pod %s/%s of %s: %w%s", strings.Join(args, " "), p.Namespace, p.Name,
			p.Node.cluster.Name, err, more)
	}
	if p.Container.PID == 0 {
		return fail(errors.New("its first container does not run"), "")
	}
	pid, err := p.Node.PID()
	if err != nil {
		return fail(err, "")
	}
	var stderr bytes.Buffer
	err = spawn.Join(ctx, pid, spawn.JoinSpec{
		Args: append([]string{"runc", "--root", "/run/containerd/runc/k8s.io", "exec", p.Container.ID}, args...),
		Env:  nodeEnv(), Groups: p.Node.cluster.tb.cgroups.FilesInside(p.Node.daemons()), Stdout: stdout, Stderr: &stderr,
	})
	if err != nil {
		return fail(err, errorOutput(&stderr))
	}
	return nil
}

// KillPod kills the processes of all containers of a pod, like a crash.
func (c *Cluster) KillPod(ctx context.Context, namespace, pod string) error {
	p, err := c.Pod(ctx, namespace, pod)
	if err != nil {
		return err
	}
	var errs []error
	for _, container := range p.Containers {
		// The kernel kills the other processes of its PID namespace with it.
		process, err := os.FindProcess(container.PID)
		if err == nil {
			err = process.Kill()
		}
		if err != nil && !errors.Is(err, os.ErrProcessDone) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// podLogs returns a glob pattern of the log files of containers, below /var/log/pods of the node.
func (n *Node) podLogs(namespace, pod, container string) string {
	return filepath.Join(n.disk, "var/log/pods", namespace+"_"+pod+"_*", container, "*.log")
}

// PodLogs returns the log files of containers on this machine, in CRI format: a file for each run of a container that
// kubelet keeps. The arguments are glob patterns of path/filepath.
func (c *Cluster) PodLogs(namespace, pod, container string) ([]string, error) {
	var all []string
	for _, n := range c.Nodes {
		files, err := filepath.Glob(n.podLogs(namespace, pod, container))
		if err != nil {
			return nil, err
		}
		all = append(all, files...)
	}
	return all, nil
}
