package testbed

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/semaphore/test/testbed/components"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
	"github.com/kube-semaphore/semaphore/test/testbed/spawn"
)

// makeClients makes the clients of this process. Their connections are made inside the fabric: the apiserver is not
// reached from the machine's own network.
func (c *Cluster) makeClients() error {
	config, err := c.access.rest("admin", "system:masters")
	if err != nil {
		return err
	}
	config.Dial = c.tb.dial
	c.REST = config
	if c.Client, err = kubernetes.NewForConfig(protobuf(config)); err != nil {
		return err
	}
	c.kinds = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.Client.Discovery()))
	c.Dynamic, err = dynamic.NewForConfig(config)
	return err
}

// dial connects from the fabric. The connection does not outlive the testbed: an answer on one that is only being set
// up would be waited for in vain.
func (tb *Testbed) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := tb.fabric.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &shortLived{conn, context.AfterFunc(tb.life, func() { _ = conn.Close() })}, nil
}

// shortLived is a connection that something else may close too.
type shortLived struct {
	net.Conn
	forget func() bool
}

func (c *shortLived) Close() error {
	c.forget()
	return c.Conn.Close()
}

// protobuf is a client configuration for the types that Kubernetes itself defines.
func protobuf(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return config
}

// Node is the node with a name, or nil.
func (c *Cluster) Node(name string) *Node {
	for _, n := range c.Nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// ControlPlane is the namespace where etcd and the apiserver are. etcd's clients, its HTTP gateway among them, are
// served on port 2379 of its loopback, without TLS.
func (c *Cluster) ControlPlane() *netns.Namespace { return c.controlPlane }

// Process is a component by its name, or nil: "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler",
// "kube-controllers" (Calico's); on each node "containerd/n1", "kubelet/n1", "kube-proxy/n1", "calico-node/n1" (Felix,
// confd, BIRD and the rest of what calico/node's image runs).
func (c *Cluster) Process(name string) *Process {
	c.processesMu.Lock()
	defer c.processesMu.Unlock()
	for _, p := range c.processes {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Kubectl runs kubectl as an administrator of the cluster and returns what it wrote to stdout. The error has what it
// wrote to stderr. stdin may be nil.
func (c *Cluster) Kubectl(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	cmd := kubectl(ctx, c.tb.paths.Kubectl, c.Kubeconfig, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	err := c.tb.fabric.Do(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s in %s: %w%s", strings.Join(args, " "), c.Name, err,
			errorOutput(&stderr))
	}
	return stdout.String(), nil
}

// kubectl prepares kubectl; it must be started inside the fabric.
func kubectl(ctx context.Context, program, kubeconfig string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(),
		"KUBECONFIG="+kubeconfig,
		components.CollectsLess,
		// By default kubectl remembers what a server offers by its address, which is the same in every testbed.
		"KUBECACHEDIR="+filepath.Join(filepath.Dir(kubeconfig), "kubectl-cache"),
	)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 2 * time.Second
	return cmd
}

// ApplyYAML applies objects as `kubectl apply --server-side --force-conflicts -f` does, without a process.
func (c *Cluster) ApplyYAML(ctx context.Context, objects string) error {
	force := true
	options := metav1.PatchOptions{FieldManager: "kubectl", Force: &force, FieldValidation: metav1.FieldValidationStrict}
	for document := range strings.SplitSeq("\n"+objects, "\n---") {
		var object unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			return fmt.Errorf("object to apply in %s: %w\n%s", c.Name, err, document)
		}
		if len(object.Object) == 0 {
			continue
		}
		client, err := c.resource(&object)
		if err != nil {
			return err
		}
		data, err := object.MarshalJSON()
		if err == nil {
			_, err = client.Patch(ctx, object.GetName(), types.ApplyPatchType, data, options)
		}
		if err != nil {
			return fmt.Errorf("applying %s %s in %s: %w", object.GetKind(), object.GetName(), c.Name, err)
		}
	}
	return nil
}

// resource returns the client for an object.
func (c *Cluster) resource(object *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	kind := object.GroupVersionKind()
	mapping, err := c.kinds.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) { // it may be defined since the apiserver was asked
		c.kinds.Reset()
		mapping, err = c.kinds.RESTMapping(kind.GroupKind(), kind.Version)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s in %s: %w", kind.Kind, object.GetName(), c.Name, err)
	}
	client := c.Dynamic.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		return client.Namespace(cmp.Or(object.GetNamespace(), metav1.NamespaceDefault)), nil
	}
	return client, nil
}

// createYAML creates objects of manifests, after replacing $NAME by values given in pairs. Those that are there stay.
func (c *Cluster) createYAML(ctx context.Context, text string, pairs ...string) error {
	replace := make([]string, len(pairs))
	for i, p := range pairs {
		if i%2 == 0 {
			p = "$" + p
		}
		replace[i] = p
	}
	text = strings.NewReplacer(replace...).Replace(text)
	for document := range strings.SplitSeq(text, "\n---\n") {
		var object unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			return fmt.Errorf("manifest: %w\n%s", err, document)
		}
		gvr, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind()) // right for all kinds we have
		var client dynamic.ResourceInterface = c.Dynamic.Resource(gvr)
		if ns := object.GetNamespace(); ns != "" {
			client = c.Dynamic.Resource(gvr).Namespace(ns)
		}
		if _, err := client.Create(ctx, &object, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create %s %s in %s: %w", gvr.Resource, object.GetName(), c.Name, err)
		}
	}
	return nil
}

// WaitForDeployment returns when the newest version of a Deployment is available with all its replicas.
func (c *Cluster) WaitForDeployment(ctx context.Context, namespace, name string, within time.Duration) error {
	return WaitFor(ctx, within, "deployment "+namespace+"/"+name+" of "+c.Name, func(ctx context.Context) error {
		d, err := c.Client.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		want, s := int32(1), d.Status
		if d.Spec.Replicas != nil {
			want = *d.Spec.Replicas
		}
		if s.ObservedGeneration < d.Generation || s.Replicas != want || s.UpdatedReplicas != want ||
			s.AvailableReplicas != want {
			return fmt.Errorf("of %d replicas %d are there, %d of the newest version, %d available",
				want, s.Replicas, s.UpdatedReplicas, s.AvailableReplicas)
		}
		return nil
	})
}

// Diagnose is what helps to understand why something in a namespace does not work: its pods, its events, and what its
// containers wrote last. It returns what it could find out.
func (c *Cluster) Diagnose(ctx context.Context, namespace string) string {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var out strings.Builder
	fmt.Fprintf(&out, "== namespace %s of cluster %s\n", namespace, c.Name)
	for _, args := range [][]string{
		{"get", "pods,services,endpointslices", "-o", "wide"},
		{"get", "events", "--sort-by=.lastTimestamp"},
	} {
		text, err := c.Kubectl(ctx, nil, append([]string{"-n", namespace}, args...)...)
		if err != nil {
			text = err.Error() + "\n"
		}
		out.WriteString(text)
	}
	for _, n := range c.Nodes {
		logs, err := filepath.Glob(n.podLogs(namespace, "*", "*"))
		if err != nil {
			fmt.Fprintln(&out, err)
		}
		for _, path := range logs {
			fmt.Fprintf(&out, "== %s: %s\n%s\n", n.Name, strings.TrimPrefix(path, n.disk), tail(path, 25))
		}
	}
	return out.String()
}

// KubectlCommand prepares kubectl for a cluster of a testbed that another process owns. start starts it where the
// apiserver is reached.
func (s *State) KubectlCommand(ctx context.Context, cluster string, args ...string) (cmd *exec.Cmd, start func() error,
	err error) {
	c, err := s.Cluster(cluster)
	if err != nil {
		return nil, nil, err
	}
	fabric, err := netns.Open(s.Fabric)
	if err != nil {
		return nil, nil, err
	}
	cmd = kubectl(ctx, s.Kubectl, c.Kubeconfig, args...)
	return cmd, func() error { return fabric.Do(cmd.Start) }, nil
}

// ShellCommand prepares a command on the fabric of a testbed that another process owns, for which kubectl is in PATH
// and KUBECONFIG has all clusters. start starts it there.
func (s *State) ShellCommand(ctx context.Context, args ...string) (cmd *exec.Cmd, start func() error, err error) {
	fabric, err := netns.Open(s.Fabric)
	if err != nil {
		return nil, nil, err
	}
	path := filepath.Dir(s.Kubectl) + ":" + os.Getenv("PATH")
	if self, err := os.Executable(); err == nil { // semaphorectl is beside the testbed's program
		path += ":" + filepath.Dir(self)
	}
	program := args[0]
	// The testbed's own directory comes first, as it does for the command itself.
	if args[0] == filepath.Base(s.Kubectl) {
		program = s.Kubectl
	}
	cmd = exec.CommandContext(ctx, program, args[1:]...)
	cmd.Env = append(os.Environ(), "PATH="+path, "KUBECONFIG="+s.Kubeconfig,
		"KUBECACHEDIR="+filepath.Join(s.Dir, "kubectl-cache"),
		"SEMAPHORE_TESTBED="+s.ID)
	return cmd, func() error { return fabric.Do(cmd.Start) }, nil
}

// Cluster is a cluster by its name.
func (s *State) Cluster(name string) (*ClusterState, error) {
	var names []string
	for i := range s.Clusters {
		if s.Clusters[i].Name == name {
			return &s.Clusters[i], nil
		}
		names = append(names, s.Clusters[i].Name)
	}
	return nil, fmt.Errorf("testbed %s has no cluster %s; it has %s", s.ID, name, strings.Join(names, ", "))
}

// Node is a node by its name.
func (c *ClusterState) Node(name string) (*NodeState, error) {
	var names []string
	for i := range c.Nodes {
		if c.Nodes[i].Name == name {
			return &c.Nodes[i], nil
		}
		names = append(names, c.Nodes[i].Name)
	}
	return nil, fmt.Errorf("cluster %s has no node %s; it has %s. Pods are named NAMESPACE/POD", c.Name, name,
		strings.Join(names, ", "))
}

// Join runs a command on a node of a testbed that another process owns.
func (n *NodeState) Join(ctx context.Context, spec spawn.JoinSpec) error {
	if n.PID == 0 {
		return fmt.Errorf("node %s is without power", n.Name)
	}
	spec.Env, spec.Groups = append(nodeEnv(), spec.Env...), n.Daemons
	return spawn.Join(ctx, n.PID, spec)
}
