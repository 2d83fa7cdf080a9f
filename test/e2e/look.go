package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kube-semaphore/semaphore/test/testbed"
)

// Status returns semaphorectl's status of both brokers.
func (s *Scenario) Status(ctx context.Context) (string, error) {
	var out strings.Builder
	for _, c := range s.tb.Clusters() {
		text, err := s.ctl(ctx, c, "broker", "status")
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "%s$ kubectl exec deploy/semaphore-broker -- semaphorectl status\n%s\n", c.Name, text)
	}
	return out.String(), nil
}

// ctl runs semaphorectl in the container of the leading broker or exporter, as kubectl exec does.
func (s *Scenario) ctl(ctx context.Context, c *testbed.Cluster, part string, args ...string) (string, error) {
	p, err := awaitLeader(ctx, c, part)
	if err != nil {
		return "", err
	}
	out, err := c.ExecPod(ctx, Namespace, p.Name, append([]string{"semaphorectl"}, args...)...)
	if err != nil {
		return "", fmt.Errorf("%s: semaphorectl in pod %s: %w\n%s", c.Name, p.Name, err, out)
	}
	return out, nil
}

// attached returns nil if a cluster's broker has every agent attached, every remote connected, and nothing pending.
func (s *Scenario) attached(ctx context.Context, c *testbed.Cluster) error {
	_, err := s.ctl(ctx, c, "broker", "status")
	return err
}

// Memory returns the resident memory of each process of semaphore, in MiB.
func (s *Scenario) Memory(ctx context.Context) (string, error) {
	var out strings.Builder
	for _, c := range s.tb.Clusters() {
		all, err := pods(ctx, c, Namespace, "app.kubernetes.io/name=semaphore")
		if err != nil {
			return "", err
		}
		for _, p := range all {
			running, err := c.Pod(ctx, Namespace, p.Name)
			if err != nil {
				return "", err
			}
			var pids []int
			for _, container := range running.Containers {
				pids = append(pids, container.PIDs...)
			}
			for _, pid := range pids {
				command, kib, err := resident(pid)
				if errors.Is(err, os.ErrNotExist) {
					continue // ended in the meantime
				}
				if err != nil {
					return "", err
				}
				fmt.Fprintf(&out, "  %-3s %-36s %-38s %5.1f MiB\n", c.Name, p.Name, command, float64(kib)/1024)
			}
		}
	}
	return out.String(), nil
}

// resident returns the command and the resident memory (KiB) of a process, see proc_pid_status(5).
func resident(pid int) (command string, kib int, err error) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	args, err := os.ReadFile(dir + "cmdline")
	if err != nil {
		return "", 0, err
	}
	status, err := os.ReadFile(dir + "status")
	if err != nil {
		return "", 0, err
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err = strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(text), " kB"))
			if err != nil {
				return "", 0, fmt.Errorf("%sstatus: %q: %w", dir, line, err)
			}
		}
	}
	words := strings.Split(strings.Trim(string(args), "\x00"), "\x00")
	return filepath.Base(strings.Join(words, " ")), kib, nil
}

// Diagnose returns information for understanding a failed step.
func (s *Scenario) Diagnose(ctx context.Context) string {
	var out strings.Builder
	for _, c := range s.tb.Clusters() {
		out.WriteString(c.Diagnose(ctx, Namespace))
		out.WriteString(c.Diagnose(ctx, "shop"))
	}
	return out.String()
}
