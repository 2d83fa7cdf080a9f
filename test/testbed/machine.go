package testbed

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/kube-semaphore/semaphore/test/testbed/cgroup"
	"github.com/kube-semaphore/semaphore/test/testbed/components"
	"github.com/kube-semaphore/semaphore/test/testbed/netns"
)

// checkMachine returns one error with everything that the machine lacks for these options, before anything starts.
func checkMachine(ctx context.Context, o Options) (*cgroup.Hierarchies, error) {
	if err := components.CheckSystem(ctx, Directory); err != nil {
		return nil, err
	}
	groups, err := cgroup.Find(o.CgroupMount)
	if err == nil {
		err = groups.Check()
	}
	errs := []error{err, checkWatchers(o)}
	for _, m := range KubeProxyModes() {
		if m.Mode == o.KubeProxyMode && m.Err != nil {
			errs = append(errs, fmt.Errorf("kube-proxy mode %s: %w", m.Mode, m.Err))
		}
	}
	return groups, errors.Join(errs...)
}

// The number of inotify(7) instances, as measured: kube-apiserver 6 and kube-controller-manager 1; kubelet 6,
// containerd 2 and kube-proxy 1; and a few for pods.
const watchersOfCluster, watchersOfNode, watchersOfPods = 7, 9, 4

// checkWatchers checks that the machine has enough inotify instances left. All testbeds share the limit of a user, 128
// by default. A component that gets none exits with "too many open files".
func checkWatchers(o Options) error {
	data, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	if err != nil {
		return err
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return fmt.Errorf("fs.inotify.max_user_instances: %w", err)
	}
	need := watchersOfPods
	for _, c := range o.Clusters {
		need += watchersOfCluster + c.Nodes*watchersOfNode
	}
	descriptors, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return err
	}
	used := 0
	for _, d := range descriptors {
		// The descriptor may have been closed since the glob.
		if target, err := os.Readlink(d); err == nil && target == "anon_inode:inotify" {
			used++
		}
	}
	if used+need > most {
		return fmt.Errorf("programs of this machine may watch files %d times (fs.inotify.max_user_instances), %d are taken "+
			"and the testbed needs %d: "+
			"take other testbeds down, or allow more with sysctl fs.inotify.max_user_instances=1024", most, used, need)
	}
	return nil
}

// ProxyMode is a mode of kube-proxy. Err says why this machine does not support it, or is nil.
type ProxyMode struct {
	Mode string
	Err  error
}

// KubeProxyModes returns the modes of kube-proxy and whether this machine supports them. It needs root.
func KubeProxyModes() []ProxyMode {
	return []ProxyMode{{"iptables", nil}, {"nftables", checkNFTables()}, {"ipvs", checkIPVS()}}
}

// checkNFTables loads a ruleset into a spare namespace that uses every nftables feature of kube-proxy's rules.
func checkNFTables() error {
	program, err := exec.LookPath("nft")
	if err != nil {
		return errors.New("the program nft is missing: apt-get install nftables")
	}
	// A chain must exist before a rule jumps to it.
	const rules = `table ip check {
  chain endpoint { meta l4proto tcp dnat to 10.0.0.1:80; }
  chain service { fib daddr type local accept; numgen random mod 2 vmap { 0 : goto endpoint, 1 : goto endpoint }; }
  map services { type ipv4_addr . inet_proto . inet_service : verdict; }
  chain nat { type nat hook prerouting priority dstnat; ip daddr . meta l4proto . th dport vmap @services; }
}
`
	return inSpareNamespace(func(ns *netns.Namespace) error {
		cmd := exec.Command(program, "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		return ns.Do(func() error {
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("this kernel's nftables lack what it needs: %w: %s", err, strings.TrimSpace(string(out)))
			}
			return nil
		})
	})
}

// checkIPVS looks up the generic netlink family of IPVS. The lookup makes the kernel load the module, if it has one.
func checkIPVS() error {
	if _, err := netlink.GenlFamilyGet("IPVS"); err != nil {
		return fmt.Errorf("this kernel has no IPVS (CONFIG_IP_VS, module ip_vs): %w", err)
	}
	return nil
}

func inSpareNamespace(f func(*netns.Namespace) error) error {
	var random [4]byte
	_, _ = rand.Read(random[:])
	ns, err := netns.Create("check-" + hex.EncodeToString(random[:]))
	if err != nil {
		return err
	}
	return errors.Join(f(ns), ns.Delete())
}
