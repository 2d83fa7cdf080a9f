package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"github.com/kube-semaphore/semaphore/agent/guard"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/stream"
	"github.com/kube-semaphore/semaphore/internal/config"
)

// GuardAtBoot sets the guard that the node's agent had before the node booted, and prints it. It covers the time from
// the boot until the agent's pod runs, and needs no broker, and of the configuration only the state file, the routing
// table and guardInbound. On a node that never had an agent it does nothing. It fails if the state file cannot be used,
// or the kernel refuses a rule; the settings that can be set are set.
func GuardAtBoot(out io.Writer, cfg *config.Agent) error {
	c, unread := stream.LoadState(cfg.StateFile, "")
	if errors.Is(unread, fs.ErrNotExist) {
		fmt.Fprintf(out, "no state of an agent in %s: nothing to guard\n", cfg.StateFile)
		return nil
	}
	if c == nil {
		return unread
	}
	return errors.Join(unread, guardEarlier(out, guard.New(cfg.GuardInbound, tableOf(cfg)), c))
}

// guardEarlier sets the guard that an earlier agent had before the node booted, prints it, and returns an error for
// each remote that it cannot use. It needs nothing but the state file, so that whatever the agent reads and does next,
// no packet leaves in the clear. It leaves rules that are there: they have more than the file.
func guardEarlier(out io.Writer, g guard.Rules, c *stream.StateFile) error {
	var failed []error
	for _, r := range c.Guarded() {
		cluster, how := r.GetCluster(), "guarded"
		if err := plan.Cluster(cluster); err != nil {
			failed = append(failed, err)
			continue
		}
		if len(g.Subnets(cluster)) > 0 {
			continue
		}
		remote := guard.Remote{Permissive: r.GetPermissive()}
		for _, text := range r.GetPodSubnets() {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				failed = append(failed, fmt.Errorf("%s: %w", cluster, err))
				continue
			}
			remote.Subnets = append(remote.Subnets, prefix)
		}
		_, err := g.Set(cluster, remote)
		failed = append(failed, err)
		if remote.Permissive {
			how = "permissive, counted"
		}
		fmt.Fprintf(out, "%s: %s %s\n", cluster, strings.Trim(fmt.Sprint(remote.Subnets), "[]"), how)
	}
	return errors.Join(failed...)
}

// LoadConfig reads the agent's configuration file. If the file cannot be used, LoadConfig first sets the guard of an
// earlier agent, by the keys that can be read: an agent that ends with the error must not leave a node that has just
// booted without one. It fails if the file cannot be read or is not valid.
func LoadConfig(path string) (*config.Agent, error) {
	cfg, err := config.Load[config.Agent](path)
	if err == nil {
		return cfg, nil
	}
	data, _ := os.ReadFile(path)
	some := config.PartOfAgent(data)
	c, unread := stream.LoadState(some.StateFile, "")
	if unread != nil && !errors.Is(unread, fs.ErrNotExist) {
		err = fmt.Errorf("%w (and no guard of an earlier agent is known: %w)", err, unread)
	}
	if c != nil {
		err = errors.Join(err, guardEarlier(io.Discard, guard.New(some.GuardInbound, tableOf(some)), c))
	}
	return nil, err
}
