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

	"github.com/kube-semaphore/semaphore/testbed/cgroup"
	"github.com/kube-semaphore/semaphore/testbed/components"
	"github.com/kube-semaphore/semaphore/testbed/netns"
)

// checkMachine says, in one error and before anything starts, what the machine lacks for a testbed with these options.
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

// How many instances of inotify(7) the components of a control plane have, kube-apiserver 6 and kube-controller-manager
// 1, and those of a node, kubelet 6, containerd 2 and kube-proxy 1, counted; a few more for pods.
const watchersOfCluster, watchersOfNode, watchersOfPods = 7, 9, 4

// checkWatchers reports whether the machine has enough instances of inotify left, of which a user may have 128 by
// default, all testbeds together: a component that gets none ends with "too many open files".
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
		// What has just been closed is no longer there.
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

// ProxyMode is a mode of kube-proxy, and why it cannot be used on this machine, or nil.
type ProxyMode struct {
	Mode string
	Err  error
}

// KubeProxyModes are the modes of kube-proxy. It needs root.
func KubeProxyModes() []ProxyMode {
	return []ProxyMode{{"iptables", nil}, {"nftables", checkNFTables()}, {"ipvs", checkIPVS()}}
}

// checkNFTables makes, in a namespace of its own, a chain with what kube-proxy's rules are made of.
func checkNFTables() error {
	program, err := exec.LookPath("nft")
	if err != nil {
		return errors.New("the program nft is missing: apt-get install nftables")
	}
	// What is jumped to comes before what jumps.
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

// checkIPVS asks for the kernel's interface to IPVS, which makes it load the module where there is one.
func checkIPVS() error {
	if _, err := netlink.GenlFamilyGet("IPVS"); err != nil {
		return fmt.Errorf("this kernel has no IPVS (CONFIG_IP_VS, module ip_vs): %w", err)
	}
	return nil
}

// inSpareNamespace runs f with a network namespace that is removed afterwards.
func inSpareNamespace(f func(*netns.Namespace) error) error {
	var random [4]byte
	_, _ = rand.Read(random[:])
	ns, err := netns.Create("check-" + hex.EncodeToString(random[:]))
	if err != nil {
		return err
	}
	return errors.Join(f(ns), ns.Delete())
}
