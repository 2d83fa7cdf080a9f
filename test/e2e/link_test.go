package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testkit"
	"github.com/kube-semaphore/semaphore/test/testkit/tier"
)

// connecting is the section of the README with the commands by which two clusters are connected.
const connecting = "Connect two clusters of your own"

func firstCommands(t *testing.T, repo string) (commands []string) {
	t.Helper()
	for _, one := range readBlocks(t, repo, "README.md") {
		if one.section != connecting || one.language != "sh" {
			continue
		}
		for line := range strings.Lines(one.text) {
			commands = append(commands, strings.TrimSpace(line))
		}
		return commands
	}
	t.Fatal("README.md has no commands that connect two clusters")
	return nil
}

// valuesOf returns the cluster names in the commands, which a user would replace.
func valuesOf(commands []string) (values []string) {
	for _, c := range commands {
		values = append(values, clusterName.FindAllString(c, -1)...)
	}
	slices.Sort(values)
	return slices.Compact(values)
}

// connects checks that the README's commands connect the clusters, given only both kubeconfigs: pods reach each other's
// pods and Services, by address and by name. The last command restarts no part.
func (b *documentsBed) connects(ctx context.Context, t *testing.T) {
	for _, c := range []*testbed.Cluster{b.c1, b.c2} {
		b.shell(ctx, t, "kubectl --context "+c.Name+" -n shop label service echo mirror.semaphore.uw.io/mirror-service=true")
	}
	b.syncFrequency(ctx, t, 0)
	commands, parts := firstCommands(t, b.repo), ""
	b.namesComponent(ctx, t, commands[0])
	began := time.Now()
	for _, command := range commands {
		if strings.HasPrefix(command, "semaphorectl link ") {
			parts = b.started(ctx, t)
		}
		one := time.Now()
		out := testkit.Value(b.commands(ctx, ownMachine(command), 0))(t)
		t.Logf("$ %s (%.1f s)\n%s", command, time.Since(one).Seconds(), out)
	}
	typed := time.Since(began)
	for _, one := range readBlocks(t, b.repo, "README.md") {
		if one.section == connecting && one.word == "within" {
			b.block(ctx, t, b.c1, one)
		}
	}
	well := time.Since(began)
	for _, c := range []*testbed.Cluster{b.c1, b.c2} {
		other := map[string]string{"c1": "c2", "c2": "c1"}[c.Name]
		for _, url := range []string{
			"http://$(kubectl --context " + other + " -n shop get pods -l app=echo -o jsonpath='{.items[0].status.podIP}'):8080",
			"http://echo.shop.svc.cluster." + other + ":8080",
		} {
			must(t, until(ctx, settle, func() error {
				_, err := b.commands(ctx, "kubectl --context "+c.Name+" -n shop exec client -- curl -sS --max-time 3 "+url, 0)
				return err
			}))
		}
	}
	answered := time.Since(began)
	load, _ := os.ReadFile("/proc/loadavg")
	t.Logf("two clusters connected: %d commands, %d values (%s), 0 files; the commands took %.1f s, all was well "+
		"after %.1f s, answers in both directions came after %.1f s; load %s", len(commands), len(valuesOf(commands)),
		strings.Join(valuesOf(commands), ", "), typed.Seconds(), well.Seconds(), answered.Seconds(), load)
	if len(commands) > 3 {
		t.Errorf("%d commands connect two clusters; 3 at most", len(commands))
	}
	for here, there := range map[string]string{"c1": "c2", "c2": "c1"} {
		b.shell(ctx, t, "kubectl --context "+here+" wait --for=condition=Connected --timeout=300s remotecluster/"+there)
	}
	if after := b.started(ctx, t); after != parts && b.noneDeposed(ctx, t) {
		t.Errorf("link restarted a part: before\n%s\nafter\n%s", parts, after)
	}
	b.shell(ctx, t, "semaphorectl check --context c1 --coredns none || test $? -eq 3")
}

// syncFrequency sets how often the kubelets of c1 and c2 look at volumes: the times that the README claims are those of
// clusters of others, where it is kubelet's default (0).
func (b *documentsBed) syncFrequency(ctx context.Context, t *testing.T, every time.Duration) {
	t.Helper()
	must(t, inBoth(b.Scenario, func(c *testbed.Cluster) error { return c.SyncFrequency(ctx, every) }))
}

// inBoth does something in c1 and c2 at the same time.
func inBoth(s *Scenario, do func(*testbed.Cluster) error) error {
	var g errgroup.Group
	for _, c := range []*testbed.Cluster{s.c1, s.c2} {
		g.Go(func() error { return do(c) })
	}
	return g.Wait()
}

// namesComponent checks, on a machine whose kernel has no WireGuard, that the README's first command as printed ends
// with the finding and the command that fixes it, and not after its timeout, for which the exit code is 1.
func (b *documentsBed) namesComponent(ctx context.Context, t *testing.T, command string) {
	t.Helper()
	if _, err := netlink.GenlFamilyGet("wireguard"); !errors.Is(err, fs.ErrNotExist) {
		tier.NotTested(t, "the kernel has WireGuard, so install does not end without it: %v", err)
		return
	}
	began := time.Now()
	out := testkit.Value(b.commands(ctx, command, 2))(t)
	t.Logf("$ %s (%.1f s)\n%s", command, time.Since(began).Seconds(), out)
	for _, want := range []string{"NoWireGuard", "--components userspace-wireguard"} {
		if !strings.Contains(out, want) {
			t.Errorf("where the kernel has no WireGuard, %s does not say %q", command, want)
		}
	}
}

// unlinks checks that after unlink neither cluster has a RemoteCluster and both are well.
func (b *documentsBed) unlinks(ctx context.Context, t *testing.T) {
	b.shell(ctx, t, "semaphorectl unlink --context c1,c2 --yes")
	for _, c := range []*testbed.Cluster{b.c1, b.c2} {
		out := testkit.Value(b.commands(ctx, "kubectl --context "+c.Name+" get remoteclusters -o name", 0))(t)
		if strings.TrimSpace(out) != "" {
			t.Errorf("%s has %s", c.Name, out)
		}
	}
	b.wellSoon(ctx, t)
	for _, c := range []*testbed.Cluster{b.c1, b.c2} { // the output lists what else can be removed
		b.shell(ctx, t, "semaphorectl uninstall --context "+c.Name)
	}
}

// wellSoon waits until the status of both clusters is well.
func (b *documentsBed) wellSoon(ctx context.Context, t *testing.T) {
	t.Helper()
	must(t, until(ctx, settle, func() error {
		_, err := b.commands(ctx, "semaphorectl status --context c1 --context c2", 0)
		return err
	}))
}

// asBefore waits until clusters and nodes match their fingerprints. One policy and its binding outlive semaphore
// (docs/removal.md).
func (b *documentsBed) asBefore(ctx context.Context, t *testing.T, before map[string]fingerprint) {
	t.Helper()
	must(t, until(ctx, settle, func() error {
		now, err := b.fingerprints(ctx)
		if err != nil {
			return err
		}
		for what, was := range before {
			maps.DeleteFunc(now[what], func(thing, _ string) bool {
				return strings.HasPrefix(thing, "validatingadmissionpolic") &&
					strings.HasSuffix(thing, " semaphore-slice-addresses")
			})
			if d := was.difference(now[what]); d != "" {
				return fmt.Errorf("%s is not as it was:\n%s", what, d)
			}
		}
		return nil
	}))
}

// ownMachine adds the component to a command that docs/install.md asks for on machines like this one, whose kernel is
// new enough for WireGuard but lacks the module, and what a script says because nobody answers. Only make test-all
// applies as printed where all is there already: kubectl compares it object by object then, for four seconds.
func ownMachine(command string) string {
	own := []string{"semaphorectl install ", "semaphorectl install --components userspace-wireguard ",
		"semaphorectl link ", "semaphorectl link --yes "}
	if !tier.All() {
		own = append(own, " apply -k ", " apply --server-side --force-conflicts -k ")
	}
	return strings.NewReplacer(own...).Replace(command)
}

// installForLink installs semaphore in a cluster, with keys made there and files that name no remote.
func (b *documentsBed) installForLink(ctx context.Context, t *testing.T, c *testbed.Cluster) {
	t.Helper()
	b.shell(ctx, t, "mkdir -p overlay; cp -r deploy/example/c1 overlay/"+c.Name+
		`; sed -i 's#\.\./\.\./#../../deploy/#' overlay/`+c.Name+"/kustomization.yaml")
	kustomization := filepath.Join(b.dir, "overlay", c.Name, "kustomization.yaml")
	text := testkit.Value(os.ReadFile(kustomization))(t)
	must(t, os.WriteFile(kustomization, []byte(strings.NewReplacer(append(inExample(c), "name=c1", "name="+c.Name)...).
		Replace(string(text))), 0o644))
	// The remaining settings concern only the own cluster.
	subnets := strings.Join([]string{c.PodCIDR.String(), c.ServiceCIDR.String(), c.NodeSubnet.String()}, ", ")
	for file, text := range map[string]string{
		"broker.yaml": "localSubnets: [" + subnets + "]\nglobalServices: {podSubnets: [" + c.PodCIDR.String() +
			"]}\nmanageIPPools: true\n",
		"exporter.yaml": "# RemoteClusters say where to publish to.\n",
	} {
		must(t, os.WriteFile(filepath.Join(b.dir, "overlay", c.Name, file), []byte(text), 0o644))
	}
	b.shell(ctx, t, "kubectl --context "+c.Name+" apply -f deploy/namespace/namespace.yaml")
	b.shell(ctx, t, "semaphorectl pki init --context "+c.Name+" --cluster "+c.Name)
	b.apply(ctx, t, c)
	b.shell(ctx, t, "for part in deployment/semaphore-broker deployment/semaphore-exporter daemonset/semaphore-agent; "+
		"do kubectl --context "+c.Name+" -n semaphore rollout status $part --timeout=3m; done")
}

// noneDeposed reports whether no broker or exporter of c1 and c2 has exited because it lost its Lease. One whose
// apiserver gets no CPU time for ten seconds does so and restarts, which is no fault of the tested code.
func (b *documentsBed) noneDeposed(ctx context.Context, t *testing.T) bool {
	t.Helper()
	out, err := b.commands(ctx, `for c in c1 c2; do for p in $(kubectl --context $c -n semaphore get pods -o name); do `+
		`kubectl --context $c -n semaphore logs --previous $p 2>/dev/null | grep 'no longer the leader' || true; `+
		`done; done`, 0)
	must(t, err)
	if out != "" {
		tier.NotTested(t, "a leader lost its Lease meanwhile:\n%s", out)
	}
	return out == ""
}

// started returns the start time of each container of semaphore in c1 and c2, by pod, once all run and none is being
// deleted: a rollout before leaves pods that end for a while, and their end is no restart.
func (b *documentsBed) started(ctx context.Context, t *testing.T) (out string) {
	t.Helper()
	must(t, until(ctx, settle, func() error {
		out = ""
		for _, c := range []*testbed.Cluster{b.c1, b.c2} {
			list, err := c.Client.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			lines, err := startsOf(list.Items)
			if err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
			out += lines
		}
		return nil
	}))
	return out
}

// startsOf returns a line for each pod, or an error if one is being deleted or has a container that does not run.
func startsOf(pods []corev1.Pod) (string, error) {
	var lines []string
	for _, p := range pods {
		if p.DeletionTimestamp != nil {
			return "", fmt.Errorf("pod %s is being deleted", p.Name)
		}
		line := p.Name
		for _, s := range p.Status.ContainerStatuses {
			if s.State.Running == nil {
				return "", fmt.Errorf("container %s of pod %s does not run", s.Name, p.Name)
			}
			line += " " + s.State.Running.StartedAt.UTC().Format(time.RFC3339)
		}
		if len(p.Status.ContainerStatuses) < len(p.Spec.Containers) {
			return "", fmt.Errorf("pod %s has not started", p.Name)
		}
		lines = append(lines, line+"\n")
	}
	slices.Sort(lines)
	return strings.Join(lines, ""), nil
}

// A pod that ends is in no list of starts, so that its disappearance is no restart; a restart is.
func TestStartsOf(t *testing.T) {
	at := metav1.Unix(1000, 0)
	pod := func(name string, started metav1.Time) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{}}},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}}}}},
		}
	}
	ending, waiting, fresh := pod("broker-old", at), pod("broker-new", at), pod("broker-new", at)
	ending.DeletionTimestamp = &at
	waiting.Status.ContainerStatuses[0].State = corev1.ContainerState{}
	fresh.Status.ContainerStatuses = nil
	for _, bad := range []corev1.Pod{ending, waiting, fresh} {
		if out, err := startsOf([]corev1.Pod{pod("agent", at), bad}); err == nil {
			t.Errorf("%q, want an error for %s", out, bad.Name)
		}
	}
	first, err := startsOf([]corev1.Pod{pod("b", at), pod("a", at)})
	again, err2 := startsOf([]corev1.Pod{pod("a", at), pod("b", at)})
	restarted, err3 := startsOf([]corev1.Pod{pod("a", at), pod("b", metav1.Unix(1001, 0))})
	if err != nil || err2 != nil || err3 != nil || first != again || first == restarted {
		t.Errorf("%q, %q, %q: %v, %v, %v", first, again, restarted, err, err2, err3)
	}
}
