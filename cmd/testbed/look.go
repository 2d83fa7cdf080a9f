package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kube-semaphore/semaphore/testbed"
	"github.com/kube-semaphore/semaphore/testbed/container"
	"github.com/kube-semaphore/semaphore/testbed/kubelet"
)

// withTestbed adds the flag that says which testbed is meant. What follows the first argument is left alone: it is for
// the program that is run.
func withTestbed(cmd *cobra.Command) (id *string) {
	cmd.Flags().SetInterspersed(false)
	return cmd.Flags().StringP("testbed", "t", "", "the testbed's ID; may be left out when one is up")
}

func kubectlCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kubectl [-t ID] CLUSTER ARGUMENTS...",
		Short: "run kubectl as an administrator of a cluster",
		Args:  cobra.MinimumNArgs(1),
	}
	id := withTestbed(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		state, err := testbed.Find(*id)
		if err != nil {
			return err
		}
		kubectl, start, err := state.KubectlCommand(cmd.Context(), args[0], args[1:]...)
		if err != nil {
			return err
		}
		kubectl.Stdin, kubectl.Stdout, kubectl.Stderr = os.Stdin, os.Stdout, os.Stderr
		if err := start(); err != nil {
			return fmt.Errorf("start kubectl: %w", err)
		}
		return ran(kubectl.Wait())
	}
	return cmd
}

func execCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec [-t ID] CLUSTER NODE|NAMESPACE/POD[/CONTAINER] [-- COMMAND...]",
		Short: "run a command, or a shell, on a node or in a pod",
		Args:  cobra.MinimumNArgs(2),
	}
	id := withTestbed(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cluster, err := findCluster(*id, args[0])
		if err != nil {
			return err
		}
		command := args[2:]
		if len(command) > 0 && command[0] == "--" {
			command = command[1:]
		}
		if len(command) == 0 {
			command = []string{"bash"}
		}
		return ran(join(cmd.Context(), cluster, args[1], command))
	}
	return cmd
}

func ctlCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ctl [-t ID] CLUSTER PART ARGUMENTS...",
		Short: "run semaphorectl inside a part of an installed semaphore",
		Long: `Runs semaphorectl inside the pod of a part, as kubectl exec does in a cluster of your own.

PART is broker, exporter, or agent@NODE.`,
		Example: "  testbed ctl c1 broker status\n  testbed ctl c2 agent@n1 debug watch",
		Args:    cobra.MinimumNArgs(2),
	}
	id := withTestbed(cmd)
	namespace := cmd.Flags().StringP("namespace", "n", "semaphore", "where semaphore is installed")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		state, err := testbed.Find(*id)
		if err != nil {
			return err
		}
		cluster, err := state.Cluster(args[0])
		if err != nil {
			return err
		}
		pod, err := partPod(cmd.Context(), &state, args[0], *namespace, args[1])
		if err != nil {
			return err
		}
		return ran(join(cmd.Context(), cluster, *namespace+"/"+pod, append([]string{"semaphorectl"}, args[2:]...)))
	}
	return cmd
}

// partPod is the name of the pod that runs a part: of several replicas the one that is ready, which leads.
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
		return "", fmt.Errorf("namespace %s of cluster %s has no pod of part %q; parts are broker, exporter and agent@NODE", namespace, cluster, part)
	default:
		return "", fmt.Errorf("part %q has pods %s: say which with %s@NODE", part, strings.Join(pods, ", "), component)
	}
}

func logsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "logs [-t ID] [-f] CLUSTER PART|NAMESPACE/POD[/CONTAINER]",
		Short: "what a component or a pod wrote",
		Long: `Shows what a component or a pod wrote.

PART is etcd, kube-apiserver, kube-controller-manager, kube-proxy/NODE, felix/NODE, or testbed for what the testbed and
its stand-in for kubelets say of all clusters.`,
		Args: cobra.ExactArgs(2),
	}
	id := withTestbed(cmd)
	follow := cmd.Flags().BoolP("follow", "f", false, "stay and show what is written from now on")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cluster, err := findCluster(*id, args[0])
		if err != nil {
			return err
		}
		files, err := logFiles(cluster, args[1])
		if err != nil {
			return err
		}
		tail := exec.CommandContext(cmd.Context(), "tail", "-n", "+1")
		if *follow {
			tail.Args = append(tail.Args, "-F")
		}
		tail.Args = append(tail.Args, files...)
		tail.Stdout, tail.Stderr = os.Stdout, os.Stderr
		err = tail.Run()
		if cmd.Context().Err() != nil {
			return nil // following ends with Ctrl-C
		}
		return err
	}
	return cmd
}

// logFiles are the files with the output of a component or of a pod's containers.
func logFiles(cluster *testbed.ClusterState, what string) ([]string, error) {
	path := filepath.Join(cluster.Logs, strings.ReplaceAll(what, "/", "-")+".log")
	if what == "testbed" {
		path = filepath.Join(filepath.Dir(cluster.Logs), "testbed.log")
	}
	if _, err := os.Stat(path); err == nil {
		return []string{path}, nil
	}
	parts := append(strings.Split(what, "/"), "*")
	if len(parts) < 3 {
		known, _ := filepath.Glob(filepath.Join(cluster.Logs, "*.log"))
		for i := range known {
			known[i] = strings.TrimSuffix(filepath.Base(known[i]), ".log")
		}
		return nil, fmt.Errorf("cluster %s has no component %s; it has %s. Pods are named NAMESPACE/POD", cluster.Name, what, strings.Join(known, ", "))
	}
	files, err := filepath.Glob(kubelet.LogPath(cluster.KubeletDir, parts[0], parts[1], parts[2]))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("cluster %s: no container of %s has run", cluster.Name, what)
	}
	return files, err
}

func findCluster(id, name string) (*testbed.ClusterState, error) {
	state, err := testbed.Find(id)
	if err != nil {
		return nil, err
	}
	return state.Cluster(name)
}

// join runs a command where a process of a testbed runs.
func join(ctx context.Context, cluster *testbed.ClusterState, where string, command []string) error {
	pid, err := cluster.PID(where)
	if err != nil {
		return err
	}
	err = container.ExecPID(ctx, pid, container.ExecSpec{
		Args: command, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		TTY: term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd())),
	})
	var exit *exec.ExitError
	if err == nil || errors.As(err, &exit) {
		return err
	}
	return fmt.Errorf("%s in %s of %s: %w", command[0], where, cluster.Name, err)
}
