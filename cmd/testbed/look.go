package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testbed/spawn"
)

// withTestbed completes a command that runs for a testbed, with the flag that selects it. Flags after the first
// argument belong to the program that is run.
func withTestbed(cmd *cobra.Command,
	run func(ctx context.Context, state *testbed.State, args []string) error) *cobra.Command {
	cmd.Flags().SetInterspersed(false)
	id := cmd.Flags().StringP("testbed", "t", "", "the testbed's ID; may be left out when one is up")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		state, err := testbed.Find(*id)
		if err != nil {
			return err
		}
		return run(cmd.Context(), &state, args)
	}
	return cmd
}

func kubectlCommand() *cobra.Command {
	return withTestbed(&cobra.Command{
		Use:   "kubectl [-t ID] CLUSTER ARGUMENTS...",
		Short: "run kubectl as an administrator of a cluster",
		Args:  cobra.MinimumNArgs(1),
	}, func(ctx context.Context, state *testbed.State, args []string) error {
		return kubectl(ctx, state, args[0], args[1:]...)
	})
}

func kubectl(ctx context.Context, state *testbed.State, cluster string, args ...string) error {
	cmd, start, err := state.KubectlCommand(ctx, cluster, args...)
	if err != nil {
		return err
	}
	return inTerminal("kubectl", cmd, start)
}

func inTerminal(name string, cmd *exec.Cmd, start func() error) error {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	return ran(cmd.Wait())
}

func shellCommand() *cobra.Command {
	return withTestbed(&cobra.Command{
		Use:   "shell [-t ID] [-- COMMAND...]",
		Short: "a shell in which plain kubectl reaches all clusters of a testbed",
		Long: `Starts a shell, or a command, on the network between the nodes of a testbed, with KUBECONFIG set: plain
kubectl, and every other client, reaches the clusters. Each is a context of its own name: kubectl --context c2
get pods -A`,
		Args: cobra.ArbitraryArgs,
	}, func(ctx context.Context, state *testbed.State, args []string) error {
		if len(args) > 0 && args[0] == "--" {
			args = args[1:]
		}
		if len(args) == 0 {
			args = []string{cmp.Or(os.Getenv("SHELL"), "sh")}
		}
		shell, start, err := state.ShellCommand(ctx, args...)
		if err != nil {
			return err
		}
		return inTerminal(args[0], shell, start)
	})
}

func execCommand() *cobra.Command {
	return withTestbed(&cobra.Command{
		Use:   "exec [-t ID] CLUSTER NODE|NAMESPACE/POD[/CONTAINER] [-- COMMAND...]",
		Short: "run a command, or a shell, on a node or in a pod",
		Args:  cobra.MinimumNArgs(2),
	}, func(ctx context.Context, state *testbed.State, args []string) error {
		command := args[2:]
		if len(command) > 0 && command[0] == "--" {
			command = command[1:]
		}
		return enter(ctx, state, args[0], args[1], command)
	})
}

// enter runs a command or a shell on a node, or in a pod with kubectl exec.
func enter(ctx context.Context, state *testbed.State, clusterName, where string, command []string) error {
	terminal := term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd()))
	if namespace, pod, ok := strings.Cut(where, "/"); ok {
		args := []string{"-n", namespace, "exec", "-i"}
		if terminal {
			args = append(args, "-t")
		}
		pod, container, ok := strings.Cut(pod, "/")
		if ok {
			args = append(args, "-c", container)
		}
		if len(command) == 0 {
			command = []string{"sh"}
		}
		return kubectl(ctx, state, clusterName, append(append(args, pod, "--"), command...)...)
	}
	cluster, err := state.Cluster(clusterName)
	if err != nil {
		return err
	}
	node, err := cluster.Node(where)
	if err != nil {
		return err
	}
	if len(command) == 0 {
		command = []string{"bash"}
	}
	err = node.Join(ctx, spawn.JoinSpec{Args: command, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		TTY: terminal})
	var exit *exec.ExitError
	if err == nil || errors.As(err, &exit) {
		return ran(err)
	}
	return fmt.Errorf("%s on %s of %s: %w", command[0], where, cluster.Name, err)
}

func ctlCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ctl [-t ID] CLUSTER PART ARGUMENTS...",
		Short: "run semaphorectl inside a part of an installed semaphore",
		Long: `Runs semaphorectl inside the pod of a part, as kubectl exec does in a cluster of your own.

PART is broker, exporter, or agent@NODE.`,
		Example: "  testbed ctl c1 broker status\n  testbed ctl c2 agent@n1 trace --watch",
		Args:    cobra.MinimumNArgs(2),
	}
	namespace := cmd.Flags().StringP("namespace", "n", "semaphore", "where semaphore is installed")
	return withTestbed(cmd, func(ctx context.Context, state *testbed.State, args []string) error {
		pod, err := partPod(ctx, state, args[0], *namespace, args[1])
		if err != nil {
			return err
		}
		return enter(ctx, state, args[0], *namespace+"/"+pod, append([]string{"semaphorectl"}, args[2:]...))
	})
}

// partPod returns the name of the pod that runs a part. Of several replicas it is the ready one, which leads.
func partPod(ctx context.Context, state *testbed.State, cluster, namespace, part string) (string, error) {
	component, node, onNode := strings.Cut(part, "@")
	args := []string{"-n", namespace, "get", "pods", "-o",
		`jsonpath={range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Ready")].status} {end}`,
		"-l", "app.kubernetes.io/name=semaphore,app.kubernetes.io/component=" + component}
	if onNode {
		args = append(args, "--field-selector", "spec.nodeName="+node)
	}
	kubectl, start, err := state.KubectlCommand(ctx, cluster, args...)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	kubectl.Stdout, kubectl.Stderr = &out, os.Stderr
	if err := start(); err != nil {
		return "", fmt.Errorf("start kubectl: %w", err)
	}
	if err := kubectl.Wait(); err != nil {
		return "", err
	}
	var pods, ready []string
	for _, p := range strings.Fields(out.String()) {
		name, is, _ := strings.Cut(p, "=")
		if pods = append(pods, name); is == "True" {
			ready = append(ready, name)
		}
	}
	if len(ready) == 1 {
		pods = ready
	}
	switch len(pods) {
	case 1:
		return pods[0], nil
	case 0:
		return "", fmt.Errorf("namespace %s of cluster %s has no pod of part %q; parts are broker, exporter and agent@NODE",
			namespace, cluster, part)
	default:
		return "", fmt.Errorf("part %q has pods %s: say which with %s@NODE", part, strings.Join(pods, ", "), component)
	}
}

func logsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "logs [-t ID] [-f] CLUSTER PART|NAMESPACE/POD[/CONTAINER]",
		Short: "what a component or a pod wrote",
		Long: `Shows what a component or a pod wrote.

PART is etcd, kube-apiserver, kube-controller-manager, kube-scheduler or kube-controllers (Calico's); containerd/NODE,
kubelet/NODE, kube-proxy/NODE or calico-node/NODE; or testbed for the testbed's own messages about all clusters.`,
		Args: cobra.ExactArgs(2),
	}
	follow := cmd.Flags().BoolP("follow", "f", false, "stay and show later lines, too")
	return withTestbed(cmd, func(ctx context.Context, state *testbed.State, args []string) error {
		cluster, err := state.Cluster(args[0])
		if err != nil {
			return err
		}
		if namespace, pod, ok := strings.Cut(args[1], "/"); ok && !isLog(cluster, args[1]) {
			pod, container, ok := strings.Cut(pod, "/")
			args := []string{"-n", namespace, "logs", pod}
			if ok {
				args = append(args, "-c", container)
			}
			if *follow {
				args = append(args, "-f")
			}
			return kubectl(ctx, state, cluster.Name, args...)
		}
		file, err := logFile(cluster, args[1])
		if err != nil {
			return err
		}
		tail := exec.CommandContext(ctx, "tail", "-n", "+1")
		if *follow {
			tail.Args = append(tail.Args, "-F")
		}
		tail.Args = append(tail.Args, file)
		tail.Stdout, tail.Stderr = os.Stdout, os.Stderr
		err = tail.Run()
		if ctx.Err() != nil {
			return nil // Ctrl-C ends following
		}
		return err
	})
}

// logPath returns the path of a component's log, whether or not the component exists.
func logPath(cluster *testbed.ClusterState, what string) string {
	if what == "testbed" {
		return filepath.Join(filepath.Dir(cluster.Logs), "testbed.log")
	}
	return filepath.Join(cluster.Logs, strings.ReplaceAll(what, "/", "-")+".log")
}

func isLog(cluster *testbed.ClusterState, what string) bool {
	_, err := os.Stat(logPath(cluster, what))
	return err == nil
}

// logFile returns the path of a component's log, or an error if there is none.
func logFile(cluster *testbed.ClusterState, what string) (string, error) {
	if isLog(cluster, what) {
		return logPath(cluster, what), nil
	}
	known, _ := filepath.Glob(filepath.Join(cluster.Logs, "*.log"))
	for i := range known {
		known[i] = strings.TrimSuffix(filepath.Base(known[i]), ".log")
	}
	return "", fmt.Errorf("cluster %s has no component %s; it has %s. Pods are named NAMESPACE/POD", cluster.Name, what,
		strings.Join(known, ", "))
}
