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
	"github.com/kube-semaphore/semaphore/agent/kernel"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/stream"
	"github.com/kube-semaphore/semaphore/internal/config"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// BootGuard configures GuardAtBoot.
type BootGuard struct {
	// StateFile is the state file of the agent that ran before the boot.
	StateFile string
	// Inbound is guardInbound of the agent's configuration, and Table its routing table.
	Inbound bool
	Table   kernel.RoutingTable
}

// GuardAtBoot sets the guard that the node's agent had before the node booted, and prints it. It covers the time from
// the boot until the agent's pod runs, and needs neither a configuration nor a broker. On a node that never had an
// agent it does nothing.
func GuardAtBoot(out io.Writer, options BootGuard) error {
	c, unread := stream.LoadAnyState(options.StateFile)
	if errors.Is(unread, fs.ErrNotExist) {
		fmt.Fprintf(out, "no state of an agent in %s: nothing to guard\n", options.StateFile)
		return nil
	}
	failed := []error{unread}
	if c == nil {
		return unread
	}
	g := guard.New(options.Inbound, options.Table)
	for _, r := range earlierRemotes(c) {
		failed = append(failed, r.err)
		if r.guard.Device == "" {
			continue
		}
		_, err := g.Set(r.cluster, r.guard)
		failed = append(failed, err)
		how := "guarded"
		if r.guard.Permissive {
			how = "permissive, counted"
		}
		fmt.Fprintf(out, "%s: %s %s\n", r.cluster, strings.Trim(fmt.Sprint(r.guard.Subnets), "[]"), how)
	}
	return errors.Join(failed...)
}

// LoadConfig reads the agent's configuration file. If the file cannot be used, LoadConfig first sets the guard of an
// earlier agent, by the keys that can be read: an agent that ends with the error must not leave a node that has just
// booted without one.
func LoadConfig(path string) (*config.Agent, error) {
	cfg, err := config.Load[config.Agent](path)
	if err == nil {
		return cfg, nil
	}
	data, _ := os.ReadFile(path)
	some := config.PartOfAgent(data)
	c, unread := stream.LoadAnyState(some.StateFile)
	if unread != nil && !errors.Is(unread, fs.ErrNotExist) {
		err = fmt.Errorf("%w (and no guard of an earlier agent is known: %w)", err, unread)
	}
	guardEarlier(guard.New(some.GuardInbound, tableOf(some)), c)
	return nil, err
}

// earlierRemote is a remote that an earlier agent guarded. Without a device its name cannot be used.
type earlierRemote struct {
	cluster string
	guard   guard.Remote
	err     error
}

// earlierRemotes returns what an earlier agent guarded, without what cannot be used.
func earlierRemotes(c *stream.StateFile) (all []earlierRemote) {
	for _, r := range c.Guarded() {
		is := earlierRemote{cluster: r.GetCluster()}
		if is.err = plan.Cluster(is.cluster); is.err == nil {
			is.guard = guard.Remote{Device: naming.Device(is.cluster), Permissive: r.GetPermissive()}
		}
		for _, text := range r.GetPodSubnets() {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				is.err = errors.Join(is.err, fmt.Errorf("%s: %w", is.cluster, err))
				continue
			}
			is.guard.Subnets = append(is.guard.Subnets, prefix)
		}
		all = append(all, is)
	}
	return all
}
