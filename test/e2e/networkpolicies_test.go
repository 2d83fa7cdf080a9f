package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kube-semaphore/semaphore/test/testbed"
	"github.com/kube-semaphore/semaphore/test/testkit"
)

// networkPolicies tests the component features/network-policies in c1, whose Felix enforces it, without and with the
// patch of docs/install.md: who can connect to broker and exporter before it is applied, with it, and after its
// deletion. With it, all parts of c1 restart, so that no connection from before is reused. remote is a pod of c2.
func networkPolicies(ctx context.Context, t *testing.T, s *Scenario, remote *testbed.Pod) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(s.in.repo, "docs", "install.md"))
	must(t, err)
	patch := regexp.MustCompile("(?s)<!-- overlay: network-policies -->\n```yaml\npatches:\n(.*?)\n```\n").
		FindSubmatch(page)
	if patch == nil {
		t.Fatal("docs/install.md has no patch of the network policies")
	}
	from := map[string][]*testbed.Pod{"c2": {remote}}
	for _, n := range s.c1.Nodes[:2] {
		must(t, s.c1.ApplyYAML(ctx, podOn("stranger-"+n.Name, n.Name)+"---\n"+hostPod("host-"+n.Name, n.Name)))
		ready(ctx, t, s.c1, "pod/stranger-"+n.Name, "pod/host-"+n.Name)
		from["pod"] = append(from["pod"], podOf(ctx, t, s.c1, "stranger-"+n.Name))
		from["host"] = append(from["host"], podOf(ctx, t, s.c1, "host-"+n.Name))
	}
	all := "8080 8443 8444 exporter:8080"
	connects := func(when string, want map[string]string) {
		t.Helper()
		must(t, until(ctx, settle, func() error {
			got := map[string]string{}
			for name, pods := range from {
				if got[name], err = s.connectsTo(ctx, pods); err != nil {
					return err
				}
			}
			if !maps.Equal(got, want) {
				return fmt.Errorf("%s, connections are made to %v, want %v", when, got, want)
			}
			return nil
		}))
	}
	connects("without a policy", map[string]string{"pod": all, "host": all, "c2": all})

	components := s.in.Components
	s.in.Components = append(slices.Clone(components), "network-policies")
	apply := func() {
		t.Helper()
		must(t, s.in.writeOverlay(s.c1))
		testkit.Value(s.c1.Kubectl(ctx, nil, "apply", "-k", s.in.overlay(s.c1.Name)))(t)
	}
	apply()
	connects("with the component", map[string]string{"pod": all, "host": "8443 8444", "c2": "8443 8444"})
	s.in.Patches = string(patch[1])
	apply()
	connects("with the patch", map[string]string{"pod": "8080 8443 exporter:8080", "host": "8443 8444", "c2": "8443"})

	// Restart all parts. Changes must then arrive in both directions.
	for _, what := range []string{"deployment/semaphore-broker", "deployment/semaphore-exporter",
		"daemonset/semaphore-agent"} {
		testkit.Value(s.c1.Kubectl(ctx, nil, "-n", Namespace, "rollout", "restart", what))(t)
	}
	_, err = s.c1.Kubectl(ctx, nil, "-n", Namespace, "rollout", "status", "daemonset/semaphore-agent", "--timeout=300s")
	must(t, err)
	must(t, s.in.WaitReady(ctx, s.c1))
	for i, c := range s.tb.Clusters() {
		name := fmt.Sprintf("late-%d", i)
		must(t, c.ApplyYAML(ctx, workload(name, setLabel+": "+name)))
		ready(ctx, t, c, "pod/"+name)
		other := s.tb.Clusters()[1-i]
		must(t, until(ctx, settle, func() error {
			sets, err := s.ctl(ctx, other, "broker", "get", "sets")
			if err == nil && !strings.Contains(sets, name) {
				err = fmt.Errorf("%s has no set of %s:\n%s", other.Name, name, sets)
			}
			return err
		}))
		must(t, until(ctx, settle, func() error { return s.attached(ctx, c) }))
	}
	connects("after all parts started again", map[string]string{"pod": "8080 8443 exporter:8080", "host": "8443 8444",
		"c2": "8443"})

	testkit.Value(s.c1.Kubectl(ctx, nil, "-n", Namespace, "delete", "networkpolicy", "--all"))(t)
	connects("when the policies are gone", map[string]string{"pod": all, "host": all, "c2": all})
	s.in.Components, s.in.Patches = components, ""
}

// hostPod returns a pod on the host network of a node, like an agent.
func hostPod(name, node string) string {
	return strings.Replace(podOn(name, node), "spec:\n", "spec:\n  hostNetwork: true\n", 1)
}

// connectsTo returns the ports of c1's broker and exporter pods to which a TCP connection succeeds. It connects from
// the last of from that is on another node, because policies never block a node from its own pods.
func (s *Scenario) connectsTo(ctx context.Context, from []*testbed.Pod) (string, error) {
	var made []string
	for _, to := range []struct{ part, prefix, port string }{
		{"broker", "", "8080"}, {"broker", "", "8443"}, {"broker", "", "8444"}, {"exporter", "exporter:", "8080"},
	} {
		p, err := leader(ctx, s.c1, to.part)
		if err != nil {
			return "", err
		}
		by := from[0]
		for _, f := range from {
			if f.Node.IP.String() != p.Status.HostIP {
				by = f
			}
		}
		// Only the connection matters: a TLS listener closes it immediately.
		out, err := by.Exec(ctx, "sh", "-c",
			"curl -s --connect-timeout 2 --max-time 3 -o /dev/null -w 'after %{time_connect}' http://"+
				p.Status.PodIP+":"+to.port+"; true")
		if err != nil {
			return "", err
		}
		if !strings.Contains(out, "after ") {
			return "", fmt.Errorf("curl wrote %q", out)
		}
		if !strings.Contains(out, "after 0.000000") {
			made = append(made, to.prefix+to.port)
		}
	}
	return strings.Join(made, " "), nil
}
