package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"strings"

	"github.com/kube-semaphore/semaphore/agent/cache"
	"github.com/kube-semaphore/semaphore/agent/guard"
	"github.com/kube-semaphore/semaphore/agent/plan"
	"github.com/kube-semaphore/semaphore/agent/routing"
	"github.com/kube-semaphore/semaphore/internal/naming"
)

// BootGuard configures GuardAtBoot.
type BootGuard struct {
	// StateFile is the state file of the agent that ran before the boot.
	StateFile string
	// Inbound is guardInbound of the agent's configuration, and Table its routing table.
	Inbound bool
	Table   routing.Table
}

// GuardAtBoot sets the guard that the node's agent had before the node booted, and prints it. It covers the time from
// the boot until the agent's pod runs, and needs neither a configuration nor a broker. On a node that never had an
// agent it does nothing.
func GuardAtBoot(out io.Writer, options BootGuard) error {
	c, err := cache.LoadAny(options.StateFile)
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(out, "no state of an agent in %s: nothing to guard\n", options.StateFile)
		return nil
	}
	if err != nil {
		return err
	}
	g := guard.New(options.Inbound, options.Table)
	var failed []error
	for _, r := range c.Guarded() {
		if err := plan.Cluster(r.GetCluster()); err != nil {
			failed = append(failed, err)
			continue
		}
		var subnets []netip.Prefix
		for _, text := range r.GetPodSubnets() {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				failed = append(failed, fmt.Errorf("%s: %w", r.GetCluster(), err))
				continue
			}
			subnets = append(subnets, prefix)
		}
		remote := guard.Remote{Device: naming.Device(r.GetCluster()), Subnets: subnets, Permissive: r.GetPermissive()}
		_, err := g.Set(r.GetCluster(), remote)
		failed = append(failed, err)
		how := "guarded"
		if r.GetPermissive() {
			how = "permissive, counted"
		}
		fmt.Fprintf(out, "%s: %s %s\n", r.GetCluster(), strings.Join(r.GetPodSubnets(), " "), how)
	}
	return errors.Join(failed...)
}
